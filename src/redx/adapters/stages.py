"""The stages of a run of adapters: train or take them, train routers, choose merges, calibrate, and keep test parts.

SEED/adapters/NAME/  adapter_config.json, adapter_model.safetensors, ownership.safetensors
SEED/library.json  router.safetensors  merges.json  risk.json  thresholds.safetensors  parts/  stages.json
SEED/requests.json  requests.safetensors  request-figures.json

Everything after the parts, from evaluation to report, is that of other runs.
"""

from __future__ import annotations

import functools
import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redx.adapters.base import BaseLM, load_base
from redx.adapters.checking import CONFIG, WEIGHTS, check_adapter
from redx.adapters.composed import ComposedLM
from redx.adapters.documents import (
    Document,
    DocumentData,
    Part,
    Window,
    read_documents,
    split_documents,
    training_blocks,
    windows,
)
from redx.adapters.domains import default_documents
from redx.adapters.library import (
    LIBRARY,
    OWNERSHIP,
    ROUTER,
    AdapterEntry,
    LibraryFile,
    describe_adapter,
    read_adapter_file,
    read_library,
)
from redx.adapters.merging import choose_merges
from redx.adapters.methods import check_method
from redx.adapters.requests import FIGURES, REQUESTS, RequestReader, new_control, prompt_tokens
from redx.adapters.routing import running_mean, train_score
from redx.adapters.streaming import PLAIN, shortlisted_parts, stream
from redx.adapters.training import save_adapter, train_adapter
from redx.composition.metrics import by_domain
from redx.composition.parts import Parts, Pieces
from redx.composition.request_risk import supported_excess
from redx.composition.risk import RiskControl, group_confidence, smallest_risk, supported_risk
from redx.config import AdapterConfig, RunConfig
from redx.data.dataset import Split
from redx.engine import Plan
from redx.errors import RedxError
from redx.io.files import check_name, natural_order, write_bytes, write_json, write_tensors
from redx.io.manifest import is_expected
from redx.io.reading import exists, read_json
from redx.io.safetensors_files import open_safetensors
from redx.models.calibration import read_calibration, write_calibration
from redx.runs.folder import SeedFolder
from redx.runs.integrity import module_hashes
from redx.runs.parts import are_complete, read_parts, write_parts
from redx.runs.plans import call_stage, run_stages
from redx.runs.stages import SeedTask
from redx.runs.transaction import edit, recover
from redx.training.router import train_router

PROMISED = ("risk", "bound", "confidence", "score", "calibration", "cutoffs")  # of a request, in summary.json
log = logging.getLogger("redx")
PREFIXES = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233)  # lengths of beginnings that routers are trained on


# --- before a run


def load(config: RunConfig, seed: int) -> DocumentData:
    """Return the documents of every domain, divided by the seed; settings that cannot work are refused first."""
    settings = _settings(config)
    given = given_adapters(settings)
    if not given and not settings.train:
        raise RedxError("There are no adapters; give --adapter NAME=FOLDER for every domain, or --train.")
    assert config.table is not None
    file, columns = config.table.file, (config.table.text, config.table.domain or "domain")
    documents = _only(read_documents(Path(file), *columns) if file else default_documents(), settings.domains)
    split = split_documents(documents, seed)
    for name in given:
        if name not in split:
            raise RedxError(f"There are no documents of the domain {name!r}; domains are {', '.join(split)}.")
    if not settings.train and (missing := [name for name in split if name not in given]):
        raise RedxError(f"The domain {missing[0]!r} has no adapter; give --adapter {missing[0]}=FOLDER, or --train.")
    return DocumentData.of(split, f"{settings.tokens} tokens of {settings.documents} documents")


def given_adapters(settings: AdapterConfig) -> dict[str, Path]:
    """Return the folders of the given adapters by name."""
    folders: dict[str, Path] = {}
    for text in settings.given:
        name, separator, folder = text.partition("=")
        if not separator or not name or not folder:
            raise RedxError(f"{text!r} is not NAME=FOLDER; write --adapter recipes=my-lora.")
        if name in folders:
            raise RedxError(f"The adapter {name!r} is given twice; leave one of them out.")
        folders[check_name(name)] = Path(folder)
    return folders


def _settings(config: RunConfig) -> AdapterConfig:
    assert config.adapters is not None  # every preset has them
    return config.adapters


def _only(documents: list[Document], domains: Sequence[str]) -> list[Document]:
    """Return the documents of some domains; of all where none are named."""
    known = sorted({document.domain for document in documents}, key=natural_order)
    for domain in domains:
        if domain not in known:
            raise RedxError(f"There are no documents of the domain {domain!r}; domains are {', '.join(known)}.")
    return [document for document in documents if not domains or document.domain in domains]


def check_run(config: RunConfig, data: dict[int, DocumentData]) -> None:
    """Refuse, before anything is written, given adapters that do not fit and a risk that cannot be promised."""
    if config.controlled_bank is None:
        raise RedxError("Adapters are residual experts; leave out --run, or choose --run red.")
    settings = _settings(config)
    new_control(settings, config.confidence)  # says so where these settings promise nothing
    for documents in data.values():
        most = settings.documents * settings.calibration
        count = sum(min(most, len(own["calibration"])) for own in documents.documents.values())
        held = group_confidence(config.confidence)
        supported_risk(config.risk, count, held, warn=False, unit="documents")
        least = smallest_risk(count, held)
        supported_excess(settings.request_risk, count, settings.request_bound, least, warn=False)
    with opened_base(config) as base:
        methods = [check_adapter(folder, base).method for folder in given_adapters(settings).values()]
    trained = ["LORA"] if len(methods) < len(next(iter(data.values())).domains) else []
    for method in methods:
        check_method(method, [*trained, *methods])


@functools.lru_cache(maxsize=1)
def _kept_base(name: str) -> list[BaseLM]:
    return [load_base(name)]


@contextmanager
def opened_base(config: RunConfig) -> Iterator[BaseLM]:
    """Return the language model, which stays in memory for the next stage."""
    yield _kept_base(config.backbone)[0]


# --- the stages of one seed


def plan_seed(task: SeedTask, data: Any) -> Plan[dict[str, float]]:
    """Make everything of one seed, each stage once; return the seconds that each stage took."""
    folder, stages = task.folder, SeedFolder(task.folder)
    call = functools.partial(call_stage, task)
    if not exists(folder / "model.json"):
        write_json(folder / "model.json", asdict(task.info))
    names = task.info.domains
    _check_library(folder, names)
    yield from run_stages(stages, experts=[call(make_adapter, data, name) for name in names])
    yield from run_stages(stages, {"library": folder / LIBRARY}, library=[call(make_library)])
    scores = {"router": folder / "adapters" / names[-1] / OWNERSHIP}
    yield from run_stages(stages, scores, router=[call(make_router, data)])
    yield from run_stages(stages, {"merges": folder / "merges.json"}, merges=[call(make_merges, data)])
    yield from run_stages(stages, {"calibration": folder / "risk.json"}, calibration=[call(make_calibration, data)])
    if "parts" in stages.done and not are_complete(folder.parent, task.seed):
        yield [call(make_parts, data)]
    yield from run_stages(stages, parts=[call(make_parts, data)])
    return stages.done


def _check_library(folder: Path, domains: tuple[str, ...]) -> None:
    """Refuse a seed whose adapters were added or removed: the parts of a run count its adapters as its domains."""
    if exists(folder / LIBRARY) and (names := read_library(folder).names) != list(domains):
        raise RedxError(
            f"{folder} has the adapters {', '.join(names) or 'none'}, and its run is of {', '.join(domains)}; "
            "make a run of other adapters with --adapter NAME=FOLDER for each, and --out ANOTHER."
        )


def make_adapter(task: SeedTask, data: DocumentData, name: str) -> None:
    """Train the adapter of a domain, or take the given one."""
    settings, target = _settings(task.config), task.folder / "adapters" / name
    if folder := given_adapters(settings).get(name):
        return _copy_adapter(folder, target)
    with opened_base(task.config) as base, tempfile.TemporaryDirectory(prefix="redx-") as scratch:
        blocks = training_blocks(data.documents[name]["train"], base.tokenizer, settings.training.tokens, base.end)
        model, loss = train_adapter(base, blocks, settings.training, task.seed, name)
        save_adapter(model, Path(scratch))
        kept = replace(base, model=model.unload().requires_grad_(False).eval())
        _kept_base(task.config.backbone)[0] = kept
        _copy_adapter(Path(scratch), target)
    log.info("adapter %s: training loss %.3f", name, loss)


def _copy_adapter(folder: Path, target: Path) -> None:
    for file in (WEIGHTS, CONFIG):
        write_bytes(target / file, read_adapter_file(folder, file))


def make_library(task: SeedTask) -> None:
    """Check all adapters of a seed and list them."""
    with opened_base(task.config) as base:
        entries = tuple(describe_adapter(task.folder / "adapters" / name, base, name) for name in task.info.domains)
        for entry in entries:
            check_method(entry.method, [entries[0].method])
        library = LibraryFile(base=base.name, fingerprint=base.fingerprint, adapters=entries)
    write_json(task.folder / LIBRARY, library.model_dump(mode="json"))


def make_router(task: SeedTask, data: DocumentData) -> None:
    """Train the router and the ownership scores on beginnings of training documents."""
    config, settings, names = task.config, _settings(task.config), task.info.domains
    with _opened_model(task) as composed:
        states = [
            _states(composed, _windows(task, data, part, settings.router_documents), PREFIXES)
            for part in ("train", "validation")
        ]
    train, validation = states
    recover(task.folder)
    with edit(task.folder) as transaction:
        for index, name in enumerate(names):
            score = train_score(config.router, train, validation, index, task.seed)
            write_tensors(transaction.new(f"adapters/{name}/{OWNERSHIP}"), score.state_dict())
        library = read_library(task.folder)
        if config.router.is_trained:
            router = train_router(config.router, names, train, validation, task.seed)
            write_tensors(transaction.new(ROUTER), router.state_dict())
            library = library.model_copy(update={"router": config.router, "routed": names})
        write_json(transaction.new(LIBRARY), library.model_dump(mode="json"))


def make_merges(task: SeedTask, data: DocumentData) -> None:
    """Choose the weights of peft's merges on validation documents."""
    settings = _settings(task.config)
    with _opened_model(task) as composed:
        found = _windows(task, data, "validation", max(1, settings.documents // 5))
        chosen = choose_merges(composed, found, settings.merges, settings.scales)
    write_json(task.folder / "merges.json", chosen)


def make_calibration(task: SeedTask, data: DocumentData) -> None:
    """Set the cut-off of risk control on calibration documents, which are the exchangeable units."""
    config, settings = task.config, _settings(task.config)
    with _opened_model(task) as composed:
        found = _windows(task, data, "calibration", settings.documents * settings.calibration)
        requests = RequestReader(prompt_tokens(settings))

        def read() -> Iterator[Parts]:
            for one in stream(composed, found, title="calibrating"):
                whole = one.parts(config.score)
                requests.update(one, whole)
                yield whole

        promise = RiskControl(config.risk, config.confidence, config.score, budget=config.budget)
        control = promise.calibrate(Pieces(read))
    control.names = task.info.domains
    by_request = new_control(settings, config.confidence).calibrate_excess(requests.excess, task.info.domains)
    recover(task.folder)
    with edit(task.folder) as transaction:
        write_calibration(transaction.new("risk.json"), transaction.new("thresholds.safetensors"), control)
        write_calibration(transaction.new(REQUESTS[0]), transaction.new(REQUESTS[1]), by_request)


def make_parts(task: SeedTask, data: DocumentData) -> None:
    """Keep the parts of the test documents, over shortlists of the vocabulary."""
    config, settings = task.config, _settings(task.config)
    control = read_calibration(task.folder)
    assert control is not None
    by_request = read_calibration(task.folder, files=REQUESTS)  # runs of older versions have none
    requests = None if by_request is None else RequestReader(prompt_tokens(settings), by_request)
    merges = read_json(task.folder / "merges.json", dict[str, Any])
    with _opened_model(task) as composed:
        names = list(composed.names)
        for method, choice in merges.items():
            composed.stack.merge(method, method, [choice["scale"]] * len(names), names)
        found = _windows(task, data, "test", settings.documents)
        watch = None if requests is None else requests.update
        banks = shortlisted_parts(composed, found, config.score, control, list(merges), watch)
    recover(task.folder)
    with edit(task.folder) as transaction:
        if requests is not None:
            write_json(transaction.new(FIGURES), requests.figures())
        modules = module_hashes(transaction.folder, transaction.entries())
        write_parts(transaction.new("parts"), banks, task.info.domains, len(names), modules=modules)


def _windows(task: SeedTask, data: DocumentData, part: Part, at_most: int) -> list[Window]:
    tokenizer = _kept_base(task.config.backbone)[0].tokenizer
    return windows(data.documents, part, tokenizer, _settings(task.config).tokens, at_most)


@contextmanager
def _opened_model(task: SeedTask) -> Iterator[ComposedLM]:
    """Return the language model with the adapters of a seed; the base is plain again afterwards."""
    with opened_base(task.config) as base:
        composed = ComposedLM.from_library(task.folder, base)
        try:
            yield composed
        finally:
            composed.stack.close()


def _states(composed: ComposedLM, found: Sequence[Window], prefixes: Sequence[int]) -> Split:
    """Return mean states of beginnings of windows, and of whole windows, with their domains."""
    states: list[Tensor] = []
    domains: list[int] = []
    for window in found:
        means = running_mean(composed.read_states(window.tokens[None]))[0]  # (T, D)
        rows = [length - 1 for length in prefixes if length < len(means)] + [len(means) - 1]
        states.append(means[rows].clone())
        domains += [window.domain] * len(rows)
    return Split(torch.cat(states), torch.zeros(len(domains), dtype=torch.int64), torch.tensor(domains))


# --- after a run


def load_seed(folder: Path, config: RunConfig) -> ComposedLM:
    """Return the language model of one seed."""
    return ComposedLM.from_pretrained(folder)


def expert_infos(folder: Path) -> list[dict[str, Any]]:
    """Return the adapters of one seed as `experts list` shows them."""
    return [_describe(entry) for entry in read_library(folder).adapters]


def _describe(entry: AdapterEntry) -> dict[str, Any]:
    return entry.model_dump(mode="json") | {"domain": entry.name, "dtype": f"{entry.method}, rank {entry.rank or '—'}"}


def describe_run(config: RunConfig, folder: Path, data: DocumentData) -> dict[str, Any]:
    """Return sections of the summary, all of the first seed.

    These are `experts`, `merges`, `cost`, `alone`, the loss of every adapter by domain, and `requests`, what RED by
    request promises and what it costs.
    """
    given = given_adapters(_settings(config))
    trained = {name: len(own["train"]) for name, own in data.documents.items() if name not in given}
    seed_folder = folder / f"seed-{config.seeds[0]}"
    entries = read_library(seed_folder).adapters
    routers = [seed_folder / ROUTER] if config.router.is_trained else []
    scores = [seed_folder / "adapters" / entry.name / OWNERSHIP for entry in entries]
    sizes = {"base": 0, "residual/plain": sum(entry.parameters for entry in entries)}
    sizes |= {"router": sum(map(_count_values, routers)), "ownership": sum(map(_count_values, scores))}
    banks = read_parts(folder, config.seeds[0]).banks
    losses, owners = banks[PLAIN].losses, banks[PLAIN].true_domains()
    assert losses is not None
    alone = {name: by_domain(losses.experts[:, index], owners, data.domains) for index, name in enumerate(data.domains)}
    with opened_base(config) as base:
        backbone = sum(parameter.numel() for parameter in base.model.parameters())
    _kept_base.cache_clear()  # nothing needs the model any more
    return {
        "experts": {entry.name: _describe(entry) | {"examples": trained.get(entry.name)} for entry in entries},
        "alone": alone,
        "merges": read_json(seed_folder / "merges.json", dict[str, Any]),
        **_describe_requests(seed_folder),
        "cost": {"parameters": sizes, "backbone_parameters": backbone},
    }


def _describe_requests(folder: Path) -> dict[str, Any]:
    """Return the section `requests` of the summary; nothing in a run of an older version."""
    control = read_calibration(folder, files=REQUESTS)
    if control is None or not is_expected(folder / FIGURES):
        return {}
    promise = {name: value for name, value in control.to_json().items() if name in PROMISED}
    return {"requests": promise | read_json(folder / FIGURES, dict[str, Any])}


def _count_values(path: Path) -> int:
    with open_safetensors(path) as file:
        return sum(file.get(name).numel() for name in file.header)
