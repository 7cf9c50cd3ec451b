"""One expert as a folder: `expert.json` describes it, `expert.safetensors` holds its tensors by `BANK.tensor`.

`statistics.safetensors` is optional: sums over its owner's examples, by which the base of a model learns from them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from redx.config import BankConfig, BankId, OwnershipConfig
from redx.errors import RedxError
from redx.io.files import Tensors, check_name, write_json, write_tensors
from redx.io.folders import check_links
from redx.io.manifest import read_manifest
from redx.io.reading import exists, guarded, is_folder, read_bytes
from redx.io.safetensors_files import SafetensorsFile, open_safetensors
from redx.models.banks import Bank, load_bank
from redx.models.base import Base
from redx.models.classes import extend_base
from redx.models.description import read_description
from redx.models.ownership import OwnershipScorer
from redx.models.statistics import FILE, Statistics, read_statistics

PICKLES = (".pt", ".pth", ".bin", ".pkl")


class Expert:
    """One expert: its description and its tensors, which are read from disk when they are first needed.

    Parameters
    ----------
    info
        The content of `expert.json`: domain, classes, settings of its banks, metrics, and the base it was trained on.
    tensors
        Its tensors by `BANK.tensor`, or the safetensors file that holds them.
    statistics
        Sums over its owner's examples; None where the owner keeps them.
    """

    def __init__(self, info: dict[str, Any], tensors: Tensors | Path, statistics: Statistics | None = None) -> None:
        if not isinstance(tensors, Path):
            info = {name: value for name, value in info.items() if name != "statistics"}
        if statistics is not None:
            statistics = statistics.rounded()  # as it is read again
            info = {**info, "statistics": {"examples": statistics.examples, "sha256": statistics.mark}}
        self._info: dict[str, Any] | Path = info
        self._tensors, self._statistics = tensors, statistics
        self._has_statistics: bool | None = None
        self._modules: dict[str, Any] = {}  # its banks and its ownership score, built once
        self._identity = _identify(tensors) if isinstance(tensors, Path) else None
        self._new_classes: tuple[str, ...] | None = None

    @staticmethod
    def open(folder: Path) -> Expert:
        """Return the expert in a folder of our own; nothing is read yet."""
        expert = Expert({}, folder / "expert.safetensors")
        expert._info = folder
        return expert

    @staticmethod
    def load(folder: str | Path, linked: bool = False) -> Expert:
        """Return the expert in a folder that a user gives, after checking what kind of files it holds.

        Parameters
        ----------
        folder
            The folder.
        linked
            Whether its files may be symbolic links, as in the cache of the Hugging Face Hub.
        """
        folder = Path(folder)
        if not is_folder(folder):
            what = "a file" if exists(folder) else "not there"
            raise RedxError(f"{folder} is {what}; give the folder of an expert, with expert.json in it.")
        if not linked:
            check_links(folder)
        with guarded(folder, "cannot be opened", "fix its permissions"):
            pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
        if pickles and not (folder / "expert.safetensors").exists():
            raise RedxError(
                f"{folder} has its weights as {pickles[0]}, and unpickling runs whatever code is in it; "
                "save them as expert.safetensors."
            )
        if not linked:
            read_manifest(folder)  # refuses a damaged one; both files are compared with it when they are read
        expert = Expert.open(folder)
        check_name(expert.name)
        expert.tensor_names()
        return expert

    @property
    def info(self) -> dict[str, Any]:
        """The content of `expert.json`."""
        if isinstance(self._info, Path):
            self._info = read_description(self._info / "expert.json")
            self._check_identity()
        return self._info

    @property
    def name(self) -> str:
        """The name of its domain."""
        return self.info["domain"]

    @property
    def new_classes(self) -> tuple[str, ...]:
        """The labels that it brings and the base does not know, in the order of its last outputs."""
        if self._new_classes is None:
            self._new_classes = tuple(self.info.get("new_classes", ())) if self._mentions("new_classes") else ()
        return self._new_classes

    def _mentions(self, key: str) -> bool:
        """Return whether its description may have an entry; parsing one that was not read yet takes longer."""
        file = self._info / "expert.json" if isinstance(self._info, Path) else None
        return file is None or not exists(file) or f'"{key}"'.encode() in read_bytes(file)

    @property
    def statistics_mark(self) -> str:
        """The hash of its statistics, which its description names; empty where it brings none."""
        if self._has_statistics is None:
            self._has_statistics = self._mentions("statistics") and "statistics" in self.info
        return str(self.info["statistics"].get("sha256", "")) if self._has_statistics else ""

    def statistics(self) -> Statistics | None:
        """Return the sums over its owner's examples, or None where it brings none.

        They are read anew on each call: they are large, and needed only where a base is computed.

        Raises
        ------
        RedxError
            If they are not those that its description names.
        """
        if not self.statistics_mark or self._statistics is not None:
            return self._statistics
        assert isinstance(self._tensors, Path)
        found = read_statistics(self._tensors.parent / FILE)
        if found.mark != self.statistics_mark:
            raise RedxError(
                f"{self._tensors.parent / FILE} holds other statistics than expert.json names; take the expert anew "
                "from where it came."
            )
        return found

    def changed(self, info: dict[str, Any] | None = None, tensors: Tensors | None = None) -> Expert:
        """Return the same expert with another description or other tensors, all of it in memory."""
        return Expert(info or self.info, self.tensors() if tensors is None else tensors, self.statistics())

    def without_statistics(self) -> Expert:
        """Return the same expert without its statistics, in memory."""
        return Expert(self.info, self.tensors())

    def extended(self, base: Base) -> Base:
        """Return the base with outputs at the floor for the classes that this expert brings."""
        return extend_base(base, len(self.new_classes))

    @property
    def loaded(self) -> bool:
        """Whether any of its tensors are in memory."""
        return bool(self._modules) or not isinstance(self._tensors, Path)

    def tensor_names(self) -> list[str]:
        """Return the names of its tensors without reading them."""
        if not isinstance(self._tensors, Path):
            return list(self._tensors)
        with _open_tensors(self._tensors) as file:
            return list(file.header)

    def tensors(self, prefix: str = "") -> Tensors:
        """Return the tensors whose names begin with `prefix` and a dot, without that prefix."""
        start = f"{prefix}." if prefix else ""
        wanted = [name for name in self.tensor_names() if name.startswith(start)]
        if isinstance(self._tensors, Path):
            with _open_tensors(self._tensors) as file:
                tensors = {name: file.get(name) for name in wanted}
            self._check_identity()
        else:
            tensors = {name: self._tensors[name] for name in wanted}
        for name, value in tensors.items():
            if value.is_floating_point() and not bool(value.isfinite().all()):
                raise RedxError(f"Expert {self.name!r} contains NaN or infinity in {name}; train it anew.")
        return {name.removeprefix(start): value for name, value in tensors.items()}

    def bank(self, bank_id: BankId, config: BankConfig, base: Base) -> Bank:
        """Return its network in one bank: a bank of this expert alone, in its own size and precision."""
        return self._once(f"bank {bank_id}", lambda: self._build_bank(config.experts_of or bank_id, config, base))

    @property
    def has_ownership(self) -> bool:
        """Whether it brings an ownership score."""
        return any(name.startswith("ownership.") for name in self.tensor_names())

    def ownership(self, config: OwnershipConfig, base: Base) -> OwnershipScorer:
        """Return its ownership score."""
        return self._once("ownership", lambda: self._build_ownership(config, base))

    def save(self, folder: str | Path) -> None:
        """Write it to a folder of its own, which `Model.add_expert` reads."""
        folder, statistics = Path(folder), self.statistics()
        write_tensors(folder / "expert.safetensors", self.tensors())
        if statistics is not None:
            statistics.save(folder / FILE)
        write_json(folder / "expert.json", self.info)

    def _check_identity(self) -> None:
        """Refuse to read from a file that was replaced after the expert was opened, since the others are older."""
        if isinstance(self._tensors, Path) and _identify(self._tensors) != self._identity:
            raise RedxError(f"{self._tensors.parent} was changed while it was in use; load the model again.")

    def _build_bank(self, bank_id: BankId, config: BankConfig, base: Base) -> Bank:
        tensors = self.tensors(str(bank_id))
        if not tensors:
            raise RedxError(
                f"Expert {self.name!r} has no part in the bank {bank_id}; train it with this run's settings."
            )
        return load_bank(self._bank_config(bank_id, config), [tensors], self.extended(base))

    def _bank_config(self, bank_id: BankId, default: BankConfig) -> BankConfig:
        try:
            own = self.info.get("banks", {}).get(str(bank_id))
            return BankConfig.model_validate(own) if own else default
        except (ValidationError, AttributeError) as error:
            raise RedxError(f"The expert.json of {self.name!r} has unusable banks; train the expert anew.") from error

    def _build_ownership(self, config: OwnershipConfig, base: Base) -> OwnershipScorer:
        tensors = self.tensors("ownership")
        if not tensors:
            raise RedxError(f"Expert {self.name!r} brings no ownership score; train it with this run's settings.")
        return OwnershipScorer(config, tensors, self.extended(base))

    def _once(self, name: str, build: Callable[[], Any]) -> Any:
        if name not in self._modules:
            self._modules[name] = build()
        return self._modules[name]


def _open_tensors(path: Path) -> AbstractContextManager[SafetensorsFile]:
    problem, advice = "is missing, truncated or no safetensors file", "take it anew from where it came"
    if not exists(path):
        raise RedxError(f"{path} {problem}; {advice}.")
    return open_safetensors(path, problem, advice, strict=True)


def _identify(path: Path) -> tuple[int, ...] | None:
    """Return what differs between a file and one that replaces it; None where there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
