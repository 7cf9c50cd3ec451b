"""The lm decomposer: a pretrained causal language model that writes the program, held to a grammar on every token.

θ = argmin -Σ_t log P_θ(y_t | question, y_<t),    y = the program's tokens and the end;  θ = LoRA or the last blocks
y_t = argmax P_θ(y | question, y_<t)              over the tokens that keep to the grammar
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from redx.config import TrainingConfig
from redx.errors import RedxError
from redx.io.progress import progress
from redx.models.backbones.hub import model_folder, quiet_transformers, require_packages
from redx.seeding import generator
from redx.tasks.arithmetic.decomposers.grammar import LIMIT, Constraint, Grammar, State, tokenise
from redx.tasks.arithmetic.program import Program
from redx.tasks.arithmetic.sentences import Language, language, sample, write
from redx.tasks.arithmetic.tokens import Token, tokens
from redx.training.loop import train

SAMPLES = 1_400
LENGTHS = (1, 2, 2, 3, 3, 3, 4, 4, 4, 4)  # steps of the programs it learns from: the more, the harder
DIET = (*["plain"] * 8, *["paraphrase"] * 2)
RANK = 16
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]  # what LoRA adapts; where they have other names, every matrix
BATCH = 8
RATE = 1e-3  # learning rate of LoRA; of whole blocks a fifth of it
ROWS, CELLS = 64, 2**14  # texts, and tokens of texts, that are decoded at once

_IGNORED = -100  # the label of what is not learned, by transformers' convention

Lesson = tuple[list[int], list[int]]  # tokens of a question, and of its program with the end


class LMDecomposer:
    """A fine-tuned language model: texts to programs."""

    def __init__(self, model: Any, grammar: Grammar, learned: dict[str, nn.Parameter], copy: bool) -> None:
        self._tensors = {name: parameter.detach().cpu().clone() for name, parameter in learned.items()}
        # LoRA costs nothing once it is part of the weights
        self._model = model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
        self._model.requires_grad_(False)
        self._grammar, self.copy = grammar, copy

    @classmethod
    def train(
        cls,
        seed: int,
        backbone: str = "smollm2-135m",
        samples: int = SAMPLES,
        words: Language | None = None,
        last_blocks: int | None = None,
        rank: int = RANK,
        rate: float | None = None,
        copy: bool = True,
        device: str = "cpu",
    ) -> LMDecomposer:
        """Learn from sentences of one to four steps, made from the training templates, in one pass."""
        model, grammar = _load(backbone, device)
        draw = random.Random(f"{seed}/lm/sentences")
        words = words or language("train")
        lessons = [_lesson(draw, words, grammar) for _ in range(samples)]
        lessons.sort(key=lambda lesson: len(lesson[0]) + len(lesson[1]))  # like lengths go together, in any order
        batches = [lessons[at : at + BATCH] for at in range(0, samples, BATCH)]
        with torch.random.fork_rng():
            torch.manual_seed(generator(seed, "lm", "start").initial_seed())
            model, learned = _learner(model, last_blocks, rank)
        train(
            list(learned.values()),
            lambda rows: loss(model, batches[int(rows)]).unsqueeze(0),  # (1,)
            [len(batches)],
            [generator(seed, "lm", "batches")],
            TrainingConfig(
                epochs=1,
                batch=1,
                virtual_batch=1,
                lr=rate or (RATE if last_blocks is None else RATE / 5),
                weight_decay=0.0,
                warmup=0.1,
            ),
            title="lm",
        )
        return cls(model, grammar, learned, copy)

    def tensors(self) -> dict[str, Tensor]:
        """What it has learned, without the backbone, to be saved."""
        return dict(self._tensors)

    @classmethod
    def from_tensors(
        cls,
        tensors: dict[str, Tensor],
        backbone: str = "smollm2-135m",
        last_blocks: int | None = None,
        rank: int = RANK,
        copy: bool = True,
        device: str = "cpu",
    ) -> LMDecomposer:
        """The inverse of `tensors`, on the backbone that it was trained on."""
        model, grammar = _load(backbone, device)
        model, learned = _learner(model, last_blocks, rank)
        if _shapes(tensors) != _shapes(learned):
            raise RedxError(f"These tensors are no lm decomposer for {backbone}; train it again with `redx run`.")
        with torch.no_grad():
            for name, parameter in learned.items():
                parameter.copy_(tensors[name])
        return cls(model, grammar, learned, copy)

    def decompose(self, texts: Sequence[str]) -> list[Program | RedxError]:
        """A program for every text, or the refusal of a text that cannot be read."""
        answers: list[Program | RedxError] = []
        read: list[tuple[int, list[int], State]] = []
        for place, text in enumerate(texts):
            try:
                found = tokens(text)
                numbers = [token.value for token in found if token.value is not None]
                read.append((place, self._prompt(found), self._grammar.start(numbers, self.copy)))
                answers.append(_UNREAD)
            except RedxError as refusal:
                answers.append(refusal)
        read.sort(key=lambda each: len(each[1]))  # like lengths go together
        with progress("decomposing", len(read)) as forward:
            for batch in _batches(read):
                written = self._decode([prompt for _, prompt, _ in batch], [start for _, _, start in batch])
                for (place, _, _), text in zip(batch, written, strict=True):
                    answers[place] = Program.parse(text)
                forward(len(batch))
        return answers

    def _prompt(self, found: Sequence[Token]) -> list[int]:
        prompt = _prompt(self._grammar.tokenizer, found)
        most = getattr(self._model.config, "max_position_embeddings", None) or 10**9
        if len(prompt) + _ROOM > most:
            raise RedxError(
                f"The question has {len(prompt)} tokens, too many for this language model; ask a shorter one."
            )
        return prompt

    @torch.inference_mode()
    def _decode(self, prompts: list[list[int]], starts: list[State]) -> list[str]:
        """The texts of well-formed programs, one for each question."""
        width = max(map(len, prompts))
        end = self._grammar.end  # fills up on the left, where the mask hides it
        ids = torch.tensor([[end] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with quiet_transformers():
            out = self._model.generate(
                input_ids=ids.to(self._model.device),
                attention_mask=mask.to(self._model.device),
                logits_processor=[Constraint(self._grammar, starts)],
                max_new_tokens=_ROOM,  # never reached: a token is a character at least
                do_sample=False,
                eos_token_id=end,
                pad_token_id=end,
            )
        return [self._grammar.text(row) for row in out[:, width:].tolist()]


def loss(model: Any, lessons: Sequence[Lesson]) -> Tensor:
    """How unlikely the true programs are, by token; questions and padding do not count, the end does."""
    ids, mask, labels = (tensor.to(model.device) for tensor in stack(lessons))
    keep = ids.shape[1] - min(len(question) for question, _ in lessons) + 1  # no scores where all is question
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=keep).logits[:, -keep:-1]
    return F.cross_entropy(logits.flatten(0, 1), labels[:, 1 - keep :].flatten(), ignore_index=_IGNORED)


def stack(lessons: Sequence[Lesson]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, mask and labels, (B, T) each, filled up on the right.

    The mask goes by length, not by token: the end may be the same token as the padding, and must be learned.
    """
    width = max(len(question) + len(program) for question, program in lessons)
    ids = torch.zeros(len(lessons), width, dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, _IGNORED)
    for row, (question, program) in enumerate(lessons):
        stop = len(question) + len(program)
        ids[row, :stop] = torch.tensor(question + program)
        mask[row, :stop] = 1
        labels[row, len(question) : stop] = torch.tensor(program)
    return ids, mask, labels


def _lesson(draw: random.Random, words: Language, grammar: Grammar) -> Lesson:
    program = sample(draw, draw.choice(LENGTHS))
    text, _ = write(program, draw, words, draw.choice(DIET))
    return _prompt(grammar.tokenizer, tokens(text)), grammar.encode(program)


def _prompt(tokenizer: Any, found: Sequence[Token]) -> list[int]:
    """The question as it was read: numbers in digits, no special tokens, and no number at the start."""
    text = " ".join(token.text if token.value is None else str(token.value) for token in found)
    return tokenise(tokenizer, f"Question: {text}\n")


def _load(backbone: str, device: str) -> tuple[Any, Grammar]:
    """A causal language model in float32, and the grammar for its tokenizer."""
    require_packages("transformers", "peft")
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    place = model_folder(backbone)
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(place, **options)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                place, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **options
            )
    except Exception as error:  # transformers has no error of its own for a damaged folder
        why = " ".join((str(error).splitlines() or [type(error).__name__])[0].split())[:200]
        raise RedxError(f"{place} cannot be loaded as a causal language model ({why}); give another folder.") from error
    model, report = loaded
    if lacking := sorted(report["missing_keys"]):  # it would be drawn at random
        raise RedxError(f"The weights in {place} lack {lacking[0]}; give the folder of a causal language model.")
    model.generation_config = GenerationConfig()  # a folder's own may ask for sampling or penalties
    return model.eval().to(device), Grammar(tokenizer)


def _learner(model: Any, last_blocks: int | None, rank: int) -> tuple[Any, dict[str, nn.Parameter]]:
    """The model with some of its weights open to learning, and these by name."""
    model.requires_grad_(False)
    if last_blocks is None:
        from peft import LoraConfig, get_peft_model

        names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
        targets = ATTENTION if names >= set(ATTENTION) else "all-linear"
        model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets))
    else:
        depth = model.config.num_hidden_layers
        lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
        blocks = next((module for module in lists if len(module) == depth), None)
        if blocks is None or not 1 <= last_blocks <= depth:
            raise RedxError(f"The last {last_blocks} blocks cannot be trained; choose 1 to {depth}, or LoRA.")
        blocks[depth - last_blocks :].requires_grad_(True)
    return model, {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _shapes(tensors: dict[str, Any]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _batches(read: list[tuple[int, list[int], State]]) -> Iterator[list[tuple[int, list[int], State]]]:
    """Cut texts, short ones first, so that no batch takes much memory."""
    start = 0
    while start < len(read):
        stop = start + 1
        while stop < min(len(read), start + ROWS) and (stop + 1 - start) * len(read[stop][1]) <= CELLS:
            stop += 1
        yield read[start:stop]
        start = stop


_ROOM = LIMIT * len("Step 12: x11 + 100 = x12\n") + len("Answer: x12") + 1  # tokens of a program and its end at most
_UNREAD = RedxError("This text was not read.")  # stands in for what is decoded later
