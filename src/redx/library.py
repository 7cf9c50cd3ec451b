"""Experts by name, as they live in a model: each is read when first used, and none knows of the others.

They stand in one order, the natural order of their names, whatever order they came in: `base + Σ_k w_k residual_k` is
then the same sum, bit for bit. Adding, removing and replacing touch the one expert alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from redx import experts, ownership
from redx.base import Base, build
from redx.composition.parts import predicted_classes
from redx.config import BankConfig, OwnershipConfig
from redx.errors import RedxError
from redx.experts import Stack
from redx.io import files
from redx.io.files import Tensors

SILENT = -1e9  # the gate of an expert that has no claim at all: its weight is exactly zero beside any other


class Owner:
    """One expert's score of what is its own, with the scores its cut-off is taken from."""

    def __init__(self, settings: OwnershipConfig, tensors: Tensors, base: Base) -> None:
        by_class = settings.score == "classes"
        self.base, self.contradict = base, settings.contradict
        self.scorer = build(settings.bank, 1, base) if by_class else Stack(1, [base.width, settings.bank.hidden, 1])
        experts.join(self.scorer, [tensors])
        self.classes = tensors["classes"][None].bool() if by_class else None  # (1, C) which are its own
        self.calibration = tensors.get("calibration", torch.empty(0))  # (n,) scores of held-out examples of others

    def claims(self, h: Tensor) -> Tensor:  # (N, E) -> (N,)
        """How much each example looks like its own: what `keys` routes by."""
        said = experts.speak(self.scorer, h)
        if self.classes is None:
            return said[:, 0, 0]
        return ownership.score_classes(self.base.classify(h)[:, None] + said, self.classes)[:, 0]

    def scores(self, h: Tensor) -> Tensor:  # (N, E) -> (N,)
        """The same, where it has something to say: what its cut-off is for."""
        claims = self.claims(h)
        if self.classes is None or not self.contradict:
            return claims
        return ownership.score_against(claims[:, None], predicted_classes(self.base.classify(h)), self.classes)[:, 0]

    def cutoff(self, alpha: float) -> float:
        return ownership.cutoff(self.calibration, alpha)

    def speaks(self, h: Tensor, alpha: float) -> Tensor:  # (N, E) -> (N,)
        return ownership.speaks(self.scores(h), torch.tensor(self.cutoff(alpha)))


class Expert:
    """One expert: what is known of it (expert.json), and its tensors by `BANK.tensor`, read when first needed."""

    def __init__(self, facts: dict[str, Any], tensors: Tensors | Path) -> None:
        self._facts: dict[str, Any] | Path = facts
        self._tensors = tensors
        self._made: dict[str, Any] = {}  # voices and owner, each made once

    @staticmethod
    def at(folder: Path) -> Expert:
        """The expert in a folder; nothing is read yet."""
        expert = Expert({}, folder / "expert.safetensors")
        expert._facts = folder
        return expert

    @staticmethod
    def read(folder: str | Path) -> Expert:
        """The expert in a folder that somebody gives us: looked at before it is trusted."""
        folder = Path(folder)
        if not folder.is_dir():
            what = "a file" if folder.exists() else "not there"
            raise RedxError(f"{folder} is {what}; give the folder of an expert, with expert.json in it.")
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in (".pt", ".pth", ".bin", ".pkl"))
        if pickles and not (folder / "expert.safetensors").exists():
            raise RedxError(
                f"{folder} has its weights as {pickles[0]}, and unpickling runs whatever code is in it; "
                "save them as expert.safetensors."
            )
        expert = Expert.at(folder)
        files.check_name(expert.name)
        expert.keys()
        return expert

    @property
    def facts(self) -> dict[str, Any]:
        if isinstance(self._facts, Path):
            path = self._facts / "expert.json"
            found = files.read_json(path)
            if not isinstance(found, dict) or not isinstance(found.get("domain"), str):
                raise RedxError(f"{path} does not describe an expert (it names no domain); train the expert anew.")
            self._facts = found
        return self._facts

    @property
    def name(self) -> str:
        return self.facts["domain"]

    @property
    def loaded(self) -> bool:
        """Whether any of its tensors are in memory."""
        return bool(self._made) or not isinstance(self._tensors, Path)

    def keys(self) -> list[str]:
        """The names of its tensors, without reading them."""
        if not isinstance(self._tensors, Path):
            return list(self._tensors)
        try:
            with safe_open(self._tensors, "pt") as file:
                return list(file.keys())
        except (OSError, SafetensorError) as error:
            raise RedxError(
                f"{self._tensors} is missing, truncated or no safetensors file; take it anew from where it came."
            ) from error

    def tensors(self, prefix: str = "") -> Tensors:
        """The tensors under a prefix, without it."""
        start = f"{prefix}." if prefix else ""
        wanted = [name for name in self.keys() if name.startswith(start)]
        if isinstance(self._tensors, Path):
            with safe_open(self._tensors, "pt") as file:
                found = {name: file.get_tensor(name) for name in wanted}
        else:
            found = {name: self._tensors[name] for name in wanted}
        if broken := [name for name, value in found.items() if value.is_floating_point() and value.isnan().any()]:
            raise RedxError(f"Expert {self.name!r} contains NaN in {broken[0]}; train it anew.")
        return {name.removeprefix(start): value for name, value in found.items()}

    def voice(self, key: str, settings: BankConfig, base: Base) -> experts.Bank:
        """What it says in one bank: a bank of itself alone, in its own size and precision."""
        return self._once(f"voice {key}", lambda: self._speak(settings.of or key, settings, base))

    def _speak(self, key: str, settings: BankConfig, base: Base) -> experts.Bank:
        tensors = self.tensors(key)
        if not tensors:
            raise RedxError(f"Expert {self.name!r} has no part in the bank {key}; train it with this run's settings.")
        bank = build(self._settings(key, settings), 1, base)
        experts.join(bank, [tensors])
        return bank

    def _settings(self, key: str, otherwise: BankConfig) -> BankConfig:
        try:
            own = self.facts.get("banks", {}).get(key)
            return BankConfig.model_validate(own) if own else otherwise
        except (ValidationError, AttributeError) as error:
            raise RedxError(f"The expert.json of {self.name!r} has unusable banks; train the expert anew.") from error

    def owner(self, settings: OwnershipConfig, base: Base) -> Owner:
        """Its score of what is its own."""
        return self._once("owner", lambda: self._own(settings, base))

    def _own(self, settings: OwnershipConfig, base: Base) -> Owner:
        tensors = self.tensors("ownership")
        if not tensors:
            raise RedxError(f"Expert {self.name!r} brings no ownership score; train it with this run's settings.")
        return Owner(settings, tensors, base)

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def save(self, folder: Path) -> None:
        """Write it to a folder of its own."""
        files.write_tensors(folder / "expert.safetensors", self.tensors())
        files.write_json(folder / "expert.json", self.facts)


class Library:
    """The experts of a model; change them with `add`, `remove` and `replace`, or for a while with `changing`."""

    def __init__(
        self,
        found: dict[str, Expert],
        base: Base,
        banks: dict[str, BankConfig],
        own: OwnershipConfig,
        mark: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._place(found)
        self.base, self.banks, self.ownership = base, banks, own
        self._mark, self._known = mark, None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._experts)

    def __len__(self) -> int:
        return len(self._experts)

    def __iter__(self) -> Iterator[Expert]:
        return iter(self._experts.values())

    def __contains__(self, name: str) -> bool:
        return name in self._experts

    def __getitem__(self, name: str) -> Expert:
        if name not in self._experts:
            raise RedxError(f"There is no expert {name!r}; choose from {', '.join(self.names)}.")
        return self._experts[name]

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What the base computes, as every expert must know it; worked out once."""
        if self._known is None:
            self._known = self._mark()
        return self._known

    # --- changes

    def add(self, expert: Expert | str | Path) -> str:
        """Take an expert in; refused where it was trained on another base. Gives its name."""
        expert = expert if isinstance(expert, Expert) else Expert.read(expert)
        if expert.name in self._experts:
            raise RedxError(f"There is an expert {expert.name!r} already; replace it, or remove it first.")
        self._admit(expert)
        self._place({**self._experts, expert.name: expert})
        return expert.name

    def remove(self, name: str) -> Expert:
        """Take an expert out; gives it, so that it can be added again."""
        gone = self[name]
        if len(self) == 1:
            raise RedxError(f"{name!r} is the last expert; without any, ask the base itself with the rule 'base'.")
        self._place({other: expert for other, expert in self._experts.items() if other != name})
        return gone

    def replace(self, name: str, expert: Expert | str | Path) -> Expert:
        """Put an expert in the place of another; gives the old one."""
        old, expert = self[name], expert if isinstance(expert, Expert) else Expert.read(expert)
        if expert.name != name and expert.name in self._experts:
            raise RedxError(f"There is an expert {expert.name!r} already; remove it first.")
        self._admit(expert)
        self._place({other: one for other, one in self._experts.items() if other != name} | {expert.name: expert})
        return old

    @contextmanager
    def changing(self) -> Iterator[Library]:
        """For a while: whatever is added, removed or replaced inside is as before afterwards."""
        before = self._experts
        try:
            yield self
        finally:
            self._experts = before

    def only(self, names: Sequence[str]) -> Library:
        """The same experts, only these; nothing is copied."""
        return Library({name: self[name] for name in names}, self.base, self.banks, self.ownership, self._mark)

    def _place(self, found: dict[str, Expert]) -> None:
        self._experts = {name: found[name] for name in sorted(found, key=files.natural_order)}

    def _admit(self, expert: Expert) -> None:
        """Refuse an expert that does not belong to this base."""
        theirs, ours = expert.facts.get("base"), self.fingerprint
        if theirs is not None and (differ := differences(theirs, ours)):
            raise RedxError(
                f"Expert {expert.name!r} was trained on another base: {', '.join(differ)} differ; "
                "train it on this run's base with `redx experts train`."
            )
        for key, settings in self.banks.items():
            expert.voice(key, settings, self.base)
            if settings.owned:
                expert.owner(self.ownership, self.base)

    # --- what they say

    def speak(self, key: str, h: Tensor, chosen: Tensor | None = None) -> Tensor:
        """What every expert says in a bank, (N, E) to (N, K, C); only where it is chosen, (N, K), if that is given."""
        said = h.new_zeros(len(h), len(self), self.base.outputs)
        settings = self.banks[key]
        for place, expert in enumerate(self):
            rows = slice(None) if chosen is None else chosen[:, place].nonzero()[:, 0]
            if chosen is not None and not len(h[rows]):
                continue
            voice = experts.speak(expert.voice(key, settings, self.base), h[rows])[:, 0]
            if settings.owned:
                voice = voice * expert.owner(self.ownership, self.base).speaks(h[rows], self.ownership.alpha)[:, None]
            said[rows, place] = voice
        return said

    def scores(self, h: Tensor) -> Tensor:
        """Every expert's own claim to each example: the gates of the open-set router, (N, E) to (N, K)."""
        found = [expert.owner(self.ownership, self.base).claims(h) for expert in self]
        return torch.stack(found, 1).nan_to_num(posinf=-SILENT, neginf=SILENT) if found else h.new_zeros(len(h), 0)

    def speaks(self, h: Tensor, alpha: float | None = None) -> Tensor:
        """Where each expert may speak: (N, E) to (N, K)."""
        alpha = alpha or self.ownership.alpha
        return torch.stack([expert.owner(self.ownership, self.base).speaks(h, alpha) for expert in self], 1)

    def stack(self, key: str) -> experts.Bank:
        """All experts of a bank as one stack, to train or average them."""
        settings = self.banks[key]
        bank = build(settings, len(self), self.base)
        experts.join(bank, [expert.tensors(settings.of or key) for expert in self])
        return bank


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """What differs between two bases, in words; figures of the probe may differ by rounding."""
    found = [name for name in ours if name != "probe" and theirs.get(name) != ours[name]]
    probes = theirs.get("probe"), ours.get("probe")
    if probes[0] is not None and probes[1] is not None and not found:
        one, other = (torch.tensor(probe) for probe in probes)
        if one.shape != other.shape or not torch.allclose(one, other, rtol=1e-3, atol=1e-3):
            found.append("features of the probe batch")
    return found
