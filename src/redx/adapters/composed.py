"""A composed language model: next-token scores `base + Σ w_k (adapter_k - base)` from one mixed batch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from redx.adapters import generation
from redx.adapters.base import BaseLM
from redx.adapters.documents import tokenise
from redx.adapters.generation import Generation, TokenStep
from redx.adapters.library import adapter_folder, library_folder, open_base, read_library, read_router, read_scores
from redx.adapters.mixed import AdapterStack
from redx.adapters.options import GenerationOptions, Weights, expand_options
from redx.adapters.routing import Owners, check_weights, choose_routing, route
from redx.composition.parts import Parts
from redx.composition.rules import RULES, Rule, compose
from redx.errors import RedxError
from redx.models.router import KEYS, TrainedRouter

RULE_NAMES = ("red", "base", "fixed", "sum")  # rules over residual experts that need no labels


class ComposedLM:
    """A frozen causal language model with K adapters as residual experts.

    Parameters
    ----------
    base
        The frozen model.
    router
        The trained router, if there is one.
    ownership
        Ownership scores of adapters by name, which the router `keys` takes as its gates.
    routing
        Which router gives the weights where none are given: `router` (the trained one), `keys` or `uniform`; by
        default the first of these that there is.
    run
        The folder that the adapters are from, if any.

    Examples
    --------
    >>> from redx.adapters.composed import ComposedLM
    >>> composed = ComposedLM.from_pretrained("runs/adapters")  # doctest: +SKIP
    >>> composed.generate("def add(a, b):").text  # doctest: +SKIP
    """

    def __init__(
        self,
        base: BaseLM,
        router: TrainedRouter | None = None,
        ownership: dict[str, nn.Module] | None = None,
        routing: str | None = None,
        run: Path | None = None,
    ) -> None:
        self.base, self.router, self.ownership, self.run = base, router, ownership or {}, run
        self.routing = choose_routing(routing, router, self.owners(tuple(self.ownership)))
        self.stack = AdapterStack(base)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        router: str | None = None,
        backbone: str | None = None,
        device: str = "cpu",
        seed: int | None = None,
    ) -> ComposedLM:
        """Return the composed model of a run folder, or of a folder that `save_pretrained` wrote.

        Parameters
        ----------
        folder
            The folder of a run, or one with library.json.
        router
            `router` (trained), `keys` (one score per adapter) or `uniform`; by default the trained router where there
            is one.
        backbone
            The base, where it is not to be found under its own name.
        device
            Where the model runs.
        seed
            Which seed of a run; the first by default.
        """
        run = library_folder(Path(folder), seed)
        return cls.from_library(run, open_base(read_library(run), backbone, device), router)

    @classmethod
    def from_library(cls, run: Path, base: BaseLM, router: str | None = None) -> ComposedLM:
        """Return the composed model of a folder with library.json, with a base that is loaded already."""
        library = read_library(run)
        trained, scores = read_router(run, library, base.width), read_scores(run, library.names, base.width)
        composed = cls(base, trained, scores, router, run)
        try:
            for entry in library.adapters:
                composed.add(entry.name, adapter_folder(run, entry, base))
        except BaseException:
            composed.stack.close()  # the base computes as before, and can be composed again
            raise
        return composed

    @property
    def names(self) -> list[str]:
        """Names of the adapters."""
        return self.stack.names

    def add(self, name: str, folder: str | os.PathLike[str]) -> None:
        """Add the adapter in a folder, as `PeftModel.save_pretrained` writes it."""
        self.stack.add(name, Path(folder))

    def remove(self, name: str) -> None:
        """Remove an adapter; the model computes as if it had never been there."""
        self.stack.remove(name)

    def owners(self, names: Sequence[str] | None = None) -> Owners:
        """Return adapters with their ownership scores, as routers ask them; by default all."""
        return Owners(tuple(self.names if names is None else names), self.ownership)

    def gates(self, states: Tensor, names: Sequence[str] | None = None) -> Tensor:
        """Return the gates of the chosen router for mean states, (N, D) to (N, K)."""
        owners = self.owners(names)
        if self.routing == KEYS:
            return owners.ownership_scores(states)
        if self.routing == "uniform":
            return states.new_zeros(len(states), len(owners.names))
        return route(self.router, owners, states)

    def read_states(self, tokens: Tensor) -> Tensor:
        """Return the base's hidden states after its middle block, (N, T) to (N, T, D)."""
        middle = self.base.model.config.num_hidden_layers // 2
        output = self.stack.forward(
            [None] * len(tokens), tokens, output_hidden_states=True, use_cache=False, logits_to_keep=1
        )
        return output.hidden_states[middle].float()

    def parts(self, tokens: Tensor) -> Parts:
        """Return base logits and residuals for the token after each position of one text.

        Parameters
        ----------
        tokens
            Tokens of one text, (T,).

        Returns
        -------
        Parts
            T examples of K experts over C tokens of the vocabulary; labels are the next tokens, the last is 0. For long
            texts use `redx.adapters.streaming`, which never holds all scores at once.
        """
        rows = [None, *self.names]
        logits = self.stack.forward(rows, tokens.expand(len(rows), -1), use_cache=False).logits.clone()
        base = logits[0]
        residuals = (logits[1:] - base).transpose(0, 1)  # (T, K, C)
        labels = torch.cat([tokens[1:], tokens.new_zeros(1)])
        return Parts(base, residuals, base.new_zeros(len(base), len(self.names)), labels, torch.zeros_like(labels))

    def scores(self, prompt: str, rule: str = "red", weights: Weights | None = None, chat: bool = False) -> Tensor:
        """Return the composed next-token scores after a prompt, (C,)."""
        tokens = self.prompt_tokens(prompt, chat)
        chosen = get_text_rule(rule)
        parts = self.parts(tokens).only(slice(len(tokens) - 1, None))
        return compose(chosen, parts, self._weights(tokens[None], chosen, weights))[0]

    @expand_options(GenerationOptions)
    def generate(self, prompt: str, options: GenerationOptions) -> Generation:
        """Continue a prompt.

        Parameters
        ----------
        prompt
            The text to continue.
        options
            The fields of `GenerationOptions`, each as a parameter: `generate(prompt, max_new_tokens=20, top_p=0.9)`.

        Returns
        -------
        Generation
            Text, weights, tokens and the radius of the sequence.
        """
        return self._continue([prompt], options)[0]

    @expand_options(GenerationOptions)
    def generate_batch(self, prompts: Sequence[str], options: GenerationOptions) -> list[Generation]:
        """Continue several prompts; the parameters are those of `generate`.

        Prompts with the same number of tokens are continued together, without padding.
        """
        return self._continue(prompts, options)

    @expand_options(GenerationOptions)
    def stream(self, prompt: str, options: GenerationOptions) -> Iterator[TokenStep]:
        """Continue a prompt and yield every token as soon as it is chosen; the parameters are those of `generate`."""
        rule, batch = (
            get_text_rule(options.rule),
            self.prompt_tokens(prompt, options.chat, options.max_new_tokens)[None],
        )
        given, rows = self.plan(batch, rule, options.weights, options.top)
        for _, step, _ in self._decode(batch, given, rule, rows[0], options):
            yield step

    def _continue(self, prompts: Sequence[str], options: GenerationOptions) -> list[Generation]:
        rule, stop = get_text_rule(options.rule), options.stop
        tokens = [self.prompt_tokens(prompt, options.chat, options.max_new_tokens) for prompt in prompts]
        results: dict[int, Generation] = {}
        for length in sorted({len(row) for row in tokens}):
            members = [index for index, row in enumerate(tokens) if len(row) == length]
            batch = torch.stack([tokens[index] for index in members])
            given, rows = self.plan(batch, rule, options.weights, options.top)
            for group in same_rows(rows):
                steps: dict[int, list[TokenStep]] = {index: [] for index in group}
                ended: dict[int, str] = {}
                for row, step, stopped in self._decode(batch[group], given[group], rule, rows[group[0]], options):
                    steps[group[row]].append(step)
                    if stopped:
                        ended[group[row]] = stopped
                for index in group:
                    text = cut_at("".join(step.text for step in steps[index]), stop)
                    by_name = dict(zip(self.names, given[index].tolist(), strict=True))
                    prompt = prompts[members[index]]
                    results[members[index]] = generation.collect(
                        prompt, by_name, steps[index], text, ended.get(index, "length")
                    )
        return [results[index] for index in range(len(prompts))]

    def save_pretrained(self, folder: str | os.PathLike[str]) -> Path:
        """Write adapters, routers and a model card to a new folder, which `from_pretrained` reads again.

        The base is not copied: its name and its fingerprint are written down. The card carries the certified figures of
        the run that the adapters are from, where it was evaluated with these adapters.
        """
        from redx.adapters.saving import save_composed

        return save_composed(self, Path(folder))

    def _decode(
        self, batch: Tensor, given: Tensor, rule: Rule, rows: tuple[str | None, ...], options: GenerationOptions
    ) -> Iterator[tuple[int, TokenStep, str | None]]:
        length, stop, ends = options.max_new_tokens, options.stop, {self.base.end}
        return generation.decode(self, batch, given, rule, rows, length, options.sampling, stop, ends)

    def plan(
        self, batch: Tensor, rule: Rule, weights: Weights | None, top: int | None
    ) -> tuple[Tensor, list[tuple[str | None, ...]]]:
        """Return the weights of every prompt, (B, K), and what has to be run for it."""
        given = self._weights(batch, rule, weights)
        everything: tuple[str | None, ...] = (None, *self.names)
        if top is None:
            return given, [everything] * len(batch)
        if top < 1:
            raise RedxError(f"The number of adapters to run is at least 1, not {top}; change it.")
        if top < len(self.names) and rule.adversary == "simplex":
            total, (values, order) = given.sum(-1, keepdim=True), given.topk(top)
            share = values / values.sum(-1, keepdim=True).clamp_min(1e-30) * total
            given = torch.zeros_like(given).scatter(1, order, share)
        return given, [self._needed(row) for row in given]

    def _needed(self, weights: Tensor) -> tuple[str | None, ...]:
        named = tuple(name for name, weight in zip(self.names, weights.tolist(), strict=True) if weight)
        base_cancels = named and abs(float(weights.sum()) - 1) < 1e-6
        return named if base_cancels else (None, *named)

    def _weights(self, batch: Tensor, rule: Rule, weights: Weights | None) -> Tensor:
        """Return the weights of a batch of prompts, (B, T) to (B, K)."""
        count = len(self.names)
        if weights is not None:
            if rule.name not in ("red", "sum"):
                raise RedxError(f"The rule {rule.name!r} has weights of its own; leave the weights out, or choose red.")
            if isinstance(weights, Mapping):
                if unknown := sorted(set(weights) - set(self.names)):
                    raise RedxError(f"There is no adapter {unknown[0]!r}; choose one of {', '.join(self.names)}.")
                weights = [float(weights.get(name, 0.0)) for name in self.names]
            fixed = torch.as_tensor(weights, dtype=torch.float32)
            return check_weights(fixed, self.names, rule.adversary == "box").expand(len(batch), -1)
        gates = torch.zeros(len(batch), count)
        if rule.routed and self.routing != "uniform":
            gates = self.gates(self.read_states(batch).mean(1))
        return rule.weights(Parts(torch.zeros(len(batch), 1), torch.zeros(len(batch), count, 1), gates))

    def prompt_tokens(self, prompt: str, chat: bool, max_new_tokens: int = 0) -> Tensor:
        """Return the tokens of a prompt, (T,), or refuse one that does not leave room for so many new ones."""
        if not isinstance(prompt, str) or not prompt.strip():
            raise RedxError("The prompt is empty; write something to continue.")
        if max_new_tokens < 0:
            raise RedxError(f"The number of new tokens is at least 0, not {max_new_tokens}; change it.")
        tokenizer: Any = self.base.tokenizer
        if chat:
            if not getattr(tokenizer, "chat_template", None):
                raise RedxError(f"{self.base.name} has no chat template; leave --chat out.")
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
            )
        else:
            text = prompt
        tokens = tokenise([text], tokenizer)[0]
        if len(tokens) + max_new_tokens > self.base.context:
            raise RedxError(
                f"The prompt has {len(tokens)} tokens, and with {max_new_tokens} new ones that is more than the "
                f"{self.base.context} that {self.base.name} reads; shorten it."
            )
        return torch.tensor(tokens)


def get_text_rule(name: str) -> Rule:
    """Return a rule that composes adapters, or refuse one that reads another form of bank or labels."""
    if name not in RULE_NAMES:
        raise RedxError(f"There is no rule {name!r} for adapters; choose one of {', '.join(RULE_NAMES)}.")
    return RULES[name]


def same_rows(rows: list[tuple[str | None, ...]]) -> list[list[int]]:
    """Return the indices of prompts that run the same adapters, group by group."""
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for index, needed in enumerate(rows):
        groups.setdefault(needed, []).append(index)
    return list(groups.values())


def cut_at(text: str, stop: Sequence[str]) -> str:
    """Return a text up to the first stop text in it."""
    return text[: min([text.find(word) for word in stop if word and word in text], default=len(text))]
