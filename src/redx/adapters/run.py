"""A run of adapters: train or take them, fit routers, choose merges, calibrate, test; every stage is computed once.

RUN/config.json  library.json  adapters/  stages.json  merges.json  calibration.json  results.jsonl  summary.json
RUN/report.html  report.md  figures/
"""

from __future__ import annotations

import json
import logging
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from redx.adapters.base import BaseLM, load_base
from redx.adapters.checking import check_adapter
from redx.adapters.composed import ComposedLM
from redx.adapters.documents import (
    Document,
    Part,
    Window,
    hash_documents,
    read_documents,
    split_documents,
    training_blocks,
    windows,
)
from redx.adapters.domains import default_documents
from redx.adapters.library import LIBRARY, adapter_folder, add_adapter, create_library, read_heads, read_library
from redx.adapters.library import set_heads as write_heads
from redx.adapters.measuring import Measured, document_cutoff, measure
from redx.adapters.merging import choose_merges
from redx.adapters.report import write_report
from redx.adapters.routers import KeysRouter, TrainedRouter, running_mean, train_key, train_router
from redx.adapters.settings import AdaptersConfig
from redx.adapters.summary import read_rows, result_rows, summarise
from redx.adapters.training import save_adapter, train_adapter
from redx.errors import RedxError
from redx.io.files import check_name, natural_order, write_bytes, write_json
from redx.io.folders import check_links
from redx.io.reading import check_path, exists, is_folder, read_json
from redx.report.page import check_packages
from redx.runs.folder import SeedFolder
from redx.runs.transaction import recover

log = logging.getLogger("redx")
Documents = dict[str, dict[Part, list[Document]]]
RUN_LOCK = ".run.lock"  # of the whole run; changes of the library have a lock of their own
PREFIXES = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233)  # lengths of beginnings that routers are trained on


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its folder, its summary and its report."""

    folder: Path
    summary: dict[str, Any]
    report: Path


def run_adapters(
    config: AdaptersConfig,
    out: Path,
    adapters: dict[str, Path] | None = None,
    domains: Callable[[], list[Document]] = default_documents,
) -> FinishedRun:
    """Run everything from documents to report; an interrupted run continues where it stopped.

    Parameters
    ----------
    config
        Settings; `data_hash` and `adapters` are filled in here.
    out
        The run folder.
    adapters
        Folders of adapters by the name of their domain, where they are not trained.
    domains
        Returns the documents where no table is given.

    Returns
    -------
    FinishedRun
        Folder, summary and report.
    """
    check_packages()
    documents = read_documents(Path(config.data)) if config.data else domains()
    documents = _only(documents, config.domains)
    split = split_documents(documents, config.seed)
    given = adapters or {}
    _check_names(split, given, config.train)
    base = load_base(config.backbone)
    hashes = {name: check_adapter(folder, base).hash for name, folder in given.items()}
    config = config.model_copy(update={"data_hash": hash_documents(documents), "adapters": hashes})
    with _locked_run(out, config):
        return _Run(config, out, base, split, given).finish()


def _only(documents: list[Document], domains: tuple[str, ...]) -> list[Document]:
    """Return the documents of some domains; of all where none are named."""
    known = sorted({document.domain for document in documents}, key=natural_order)
    for domain in domains:
        if domain not in known:
            raise RedxError(f"There are no documents of the domain {domain!r}; domains are {', '.join(known)}.")
    return [document for document in documents if not domains or document.domain in domains]


def _check_names(split: Documents, given: dict[str, Path], train: bool) -> None:
    for name in given:
        check_name(name)
        if name not in split:
            raise RedxError(f"There are no documents of the domain {name!r}; domains are {', '.join(split)}.")
    if not train and (missing := [name for name in split if name not in given]):
        raise RedxError(f"The domain {missing[0]!r} has no adapter; give --adapter {missing[0]}=FOLDER, or --train.")


class _Run:
    """The stages of one run."""

    def __init__(
        self, config: AdaptersConfig, folder: Path, base: BaseLM, split: Documents, given: dict[str, Path]
    ) -> None:
        self.config, self.folder, self.base, self.split, self.given = config, folder, base, split, given
        self.stages = SeedFolder(folder)
        self.names = list(split)

    def finish(self) -> FinishedRun:
        """Compute the stages that are not done, and return the results."""
        create_library(self.folder, self.base)
        for name in self.names:
            self.stages.stage(f"adapter {name}", lambda name=name: self._adapter(name), self.folder / "adapters" / name)
        composed = self._compose()
        first = self.folder / "adapters" / self.names[0]
        self.stages.stage("routers", lambda: self._routers(composed), first / "key.safetensors")
        router = TrainedRouter(read_heads(self.folder, self.names, "router"))
        keys = KeysRouter(read_heads(self.folder, self.names, "key"), self.config.alpha)
        self.stages.stage("merges", lambda: self._merges(composed), self.folder / "merges.json")
        self.stages.stage(
            "calibration", lambda: self._calibrate(composed, router, keys), self.folder / "calibration.json"
        )
        self.stages.stage("test", lambda: self._test(composed, router, keys), self.folder / "results.jsonl")
        library = read_library(self.folder)
        summary = summarise(
            self.config,
            self.names,
            read_rows(self.folder),
            read_json(self.folder / "calibration.json", dict),
            read_json(self.folder / "merges.json", dict),
            {entry.name: entry.hash for entry in library.adapters},
            self.stages.done,
        )
        write_json(self.folder / "summary.json", summary)
        return FinishedRun(self.folder, summary, write_report(self.folder))

    def _adapter(self, name: str) -> None:
        """Train the adapter of a domain, or take the given one, and add it to the library."""
        if name in read_library(self.folder).names:
            return  # added before the process was killed
        if name in self.given:
            add_adapter(self.folder, self.given[name], self.base, name)
            return
        blocks = training_blocks(
            self.split[name]["train"], self.base.tokenizer, self.config.training.tokens, self.base.end
        )
        model, loss = train_adapter(self.base, blocks, self.config.training, self.config.seed, name)
        with tempfile.TemporaryDirectory(prefix="redx-") as scratch:
            save_adapter(model, Path(scratch))
            self.base = replace(self.base, model=model.unload().requires_grad_(False).eval())
            add_adapter(self.folder, Path(scratch), self.base, name)
        log.info("adapter %s: training loss %.3f", name, loss)

    def _compose(self) -> ComposedLM:
        library = read_library(self.folder)
        composed = ComposedLM(self.base, run=self.folder)
        entries = {entry.name: entry for entry in library.adapters}
        for name in self.names:
            composed.add(name, adapter_folder(self.folder, entries[name], self.base))
        return composed

    def _windows(self, part: Part, at_most: int) -> list[Window]:
        found = windows(self.split, part, self.base.tokenizer, self.config.tokens, at_most)
        if missing := [name for k, name in enumerate(self.names) if not any(window.domain == k for window in found)]:
            raise RedxError(f"The {part} documents of {missing[0]!r} are all too short; give longer documents.")
        return found

    def _routers(self, composed: ComposedLM) -> None:
        """Train the router and the keys on beginnings of training documents; keys are calibrated on validation ones."""
        states, domains = self._states(composed, self._windows("train", self.config.router_documents), PREFIXES)
        held, held_domains = self._states(composed, self._windows("validation", self.config.router_documents), ())
        router = train_router(states, domains, self.names)
        heads = {}
        for k, name in enumerate(self.names):
            key = train_key(states[domains == k], states[domains != k], held[held_domains != k])
            heads[name] = {"router": router.heads[name], "key": key}
        write_heads(self.folder, heads)

    def _states(self, composed: ComposedLM, found: list[Window], prefixes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return mean states of beginnings of windows, and of whole windows, with their domains."""
        states, domains = [], []
        for window in found:
            means = running_mean(composed.read_states(window.tokens[None]))[0]  # (T, D)
            rows = [length - 1 for length in prefixes if length < len(means)] + [len(means) - 1]
            states.append(means[rows].clone())
            domains += [window.domain] * len(rows)
        return torch.cat(states), torch.tensor(domains)

    def _merges(self, composed: ComposedLM) -> None:
        found = self._windows("validation", max(1, self.config.documents // 5))
        chosen = choose_merges(composed, found, self.config.merges, self.config.scales)
        write_json(self.folder / "merges.json", chosen)

    def _calibrate(self, composed: ComposedLM, router: TrainedRouter, keys: KeysRouter) -> None:
        found = self._windows("calibration", self.config.calibration_documents or self.config.documents)
        measured = measure(composed, found, router, keys, self.config.score, thresholds=True, title="calibrating")
        cutoff = document_cutoff(measured.thresholds, self.config.risk)
        tokens = sum(measured.tokens)
        harmed = sum(int((row > cutoff).sum()) for row in measured.thresholds)
        write_json(
            self.folder / "calibration.json",
            {
                "documents": len(found),
                "tokens": tokens,
                "risk": self.config.risk,
                "score": self.config.score,
                "cutoff": None if math.isinf(cutoff) else cutoff,
                "all_contribute": cutoff == -math.inf,
                "harm": harmed / tokens,
            },
        )

    def _test(self, composed: ComposedLM, router: TrainedRouter, keys: KeysRouter) -> None:
        calibration = read_json(self.folder / "calibration.json", dict)
        cutoff = calibration["cutoff"]
        if cutoff is None:
            cutoff = -math.inf if calibration["all_contribute"] else math.inf
        merges = read_json(self.folder / "merges.json", dict)
        for method, choice in merges.items():
            composed.stack.merge(method, method, [choice["scale"]] * len(self.names), self.names)
        found = self._windows("test", self.config.documents)
        measured: Measured = measure(
            composed, found, router, keys, self.config.score, list(merges), cutoff, title="testing"
        )
        for method in merges:
            composed.remove(method)
        lines = [json.dumps(row) for row in result_rows(measured, self.names)]
        write_bytes(self.folder / "results.jsonl", ("\n".join(lines) + "\n").encode())


@contextmanager
def _locked_run(folder: Path, config: AdaptersConfig) -> Iterator[None]:
    """Create a run folder, lock it for one run, and refuse a folder that holds something else."""
    check_path(folder)
    check_links(folder)
    if exists(folder) and not is_folder(folder):
        raise RedxError(f"{folder} is a file; choose another folder with --out.")
    try:
        others = [path.name for path in folder.iterdir() if path.name[0] != "."] if exists(folder) else []
        if others and "config.json" not in others:
            kind = "a library without a run" if LIBRARY in others else "no run"
            raise RedxError(f"{folder} is not empty and holds {kind}; choose another folder with --out.")
        if others:
            _check_same(folder, config)
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / RUN_LOCK, blocking=False):
            recover(folder)
            write_json(folder / "config.json", config.model_dump(mode="json"))
            yield
    except Timeout as error:
        raise RedxError(f"Another run is writing to {folder}; wait for it or choose another with --out.") from error
    except OSError as error:
        raise RedxError(
            f"Cannot write to {folder} ({error.strerror}); choose another folder with --out or fix its permissions."
        ) from error


def _check_same(folder: Path, config: AdaptersConfig) -> None:
    before = read_json(folder / "config.json", dict, misfit="is not that of a run")
    now = config.model_dump(mode="json")
    if before.get("task") != now["task"]:
        raise RedxError(f"{folder} holds a run of {before.get('task')!r}; choose another folder with --out.")
    if different := [name for name in now if now[name] != before.get(name)]:
        raise RedxError(
            f"{folder} holds a run with other settings ({', '.join(different)}); choose another folder with --out."
        )
