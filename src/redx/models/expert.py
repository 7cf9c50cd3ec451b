"""Experts by name, as they live in a model: each is read when first used, and none knows of the others.

They stand in one order, the natural order of their names, whatever order they came in: `base + Σ_k w_k residual_k` is
then the same sum, bit for bit. Adding, removing and replacing touch the one expert alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from redx.config import BankConfig, OwnershipConfig
from redx.errors import RedxError
from redx.io import files
from redx.io.files import Tensors
from redx.models import banks
from redx.models.banks import build_bank
from redx.models.base import Base
from redx.models.ownership import OwnershipScorer


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

    def voice(self, key: str, settings: BankConfig, base: Base) -> banks.Bank:
        """What it says in one bank: a bank of itself alone, in its own size and precision."""
        return self._once(f"voice {key}", lambda: self._speak(settings.of or key, settings, base))

    def _speak(self, key: str, settings: BankConfig, base: Base) -> banks.Bank:
        tensors = self.tensors(key)
        if not tensors:
            raise RedxError(f"Expert {self.name!r} has no part in the bank {key}; train it with this run's settings.")
        bank = build_bank(self._settings(key, settings), 1, base)
        banks.fill_bank(bank, [tensors])
        return bank

    def _settings(self, key: str, otherwise: BankConfig) -> BankConfig:
        try:
            own = self.facts.get("banks", {}).get(key)
            return BankConfig.model_validate(own) if own else otherwise
        except (ValidationError, AttributeError) as error:
            raise RedxError(f"The expert.json of {self.name!r} has unusable banks; train the expert anew.") from error

    def owner(self, settings: OwnershipConfig, base: Base) -> OwnershipScorer:
        """Its score of what is its own."""
        return self._once("owner", lambda: self._own(settings, base))

    def _own(self, settings: OwnershipConfig, base: Base) -> OwnershipScorer:
        tensors = self.tensors("ownership")
        if not tensors:
            raise RedxError(f"Expert {self.name!r} brings no ownership score; train it with this run's settings.")
        return OwnershipScorer(settings, tensors, base)

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def save(self, folder: Path) -> None:
        """Write it to a folder of its own."""
        files.write_tensors(folder / "expert.safetensors", self.tensors())
        files.write_json(folder / "expert.json", self.facts)
