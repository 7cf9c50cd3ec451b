"""Change the experts of a run folder: add, remove, replace, train one alone; and retrain the router."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from redx.config import RunConfig
from redx.data.dataset import Split
from redx.data.labelled import NO_CLASS, read_labelled, read_new_classes
from redx.data.splits import sample_per_group
from redx.errors import RedxError, RefusedError
from redx.io.files import check_name, new_folder, to_safe_name, write_bytes, write_json, write_tensors
from redx.io.manifest import MANIFEST, format_manifest, list_folder
from redx.model.model import Model, ModelInfo
from redx.models.base import Base
from redx.models.classes import check_new_classes, extend_base
from redx.models.contribution import Contribution
from redx.models.expert import Expert
from redx.models.router import TRAINED, TrainedRouter
from redx.runs.admission import check_contribution, check_harm, check_rows, with_row_hashes
from redx.runs.conclusion import renew
from redx.runs.diff import SplitAnswers, compare_domains, describe_owners
from redx.runs.folder import choose_seed, load_seed, lock_run
from redx.runs.kit import Kit, kit_of_run
from redx.runs.parts import StoredParts
from redx.runs.stages import write_test_parts
from redx.runs.transaction import Transaction, edit
from redx.seeding import generator
from redx.training.datasets import Features, concatenate, expert_data, read_features, read_shared
from redx.training.experts import DTYPES, measure_expert, train_experts
from redx.training.features import embed_split, without_copies
from redx.training.router import train_router

log = logging.getLogger("redx")
Show = Callable[[dict[str, Any]], None]

MIN_EXAMPLES = 8  # that an expert can be trained on
MIN_NEW = 4  # examples of a class that it brings
HELD_OUT = 0.1  # share of an expert's own data that is kept for its metrics


def add_expert(
    run: Path,
    folder: Path,
    seed: int | None = None,
    unverified: bool = False,
    force: bool = False,
    tell: Callable[[str], None] = log.warning,
    show: Show | None = None,
    admit: bool = False,
) -> Model:
    """Add the expert in a folder to a run, and return the run's model.

    It is measured first: calibration examples must not be among the rows that it was trained on, its statistics must
    not make the base worse, and the harm of the worst router on the test split must not be above the risk.

    Parameters
    ----------
    run
        The run folder.
    folder
        Folder of an expert that was trained on the same base.
    seed
        Which seed of the run; the first by default.
    unverified
        Accept an expert that carries no fingerprint of its base.
    force
        Take it whatever the measurements say; `tell` then receives what was wrong.
    tell
        Receives warnings.
    show
        Receives what the change did to the choice examples, as `compare_domains` returns it, with the `rule`, and
        `owners`, what the statistics of experts that come or go do to the base; without it nothing of this is computed.
    admit
        Let it take part even where it harms more choice examples than it helps; otherwise it is then in quarantine.

    Raises
    ------
    RefusedError
        Where a measurement is against it; nothing is changed.
    """
    with edit_run(run, seed, force, tell, show) as editing:
        name = editing.add(Expert.load(folder), unverified)
        if admit:
            editing.model.admit([name])
    return editing.model


def remove_expert(run: Path, name: str, seed: int | None = None, show: Show | None = None) -> Path:
    """Remove an expert from a run; return the folder that it is kept in.

    Parameters
    ----------
    run
        The run folder.
    name
        Name of the expert.
    seed
        Which seed of the run; the first by default.
    show
        As for `add_expert`.
    """
    with edit_run(run, seed, show=show) as editing:
        return editing.remove(name)


def replace_expert(
    run: Path,
    name: str,
    folder: Path,
    seed: int | None = None,
    unverified: bool = False,
    force: bool = False,
    tell: Callable[[str], None] = log.warning,
    show: Show | None = None,
    admit: bool = False,
) -> tuple[Model, Path]:
    """Replace an expert of a run; return the run's model and the folder that the old expert is kept in.

    The new one is measured first, as by `add_expert`.

    Parameters
    ----------
    run
        The run folder.
    name
        Name of the expert to replace.
    folder
        Folder of the new expert; it may be the old one's own folder.
    seed
        Which seed of the run; the first by default.
    unverified, force, tell, show, admit
        As for `add_expert`.
    """
    on_disk = Expert.load(folder)
    new = on_disk.changed()  # in memory, for its folder may be the one that is moved
    with edit_run(run, seed, force, tell, show) as editing:
        kept = editing.replace(name, new, unverified)
        if admit:
            editing.model.admit([new.name])
    return editing.model, kept


def admit_experts(run: Path, names: Sequence[str], seed: int | None = None) -> None:
    """Let experts take part although they are in quarantine; the risk is calibrated anew with them.

    Parameters
    ----------
    run
        The run folder.
    names
        Names of the experts.
    seed
        Which seed of the run; all of them by default.
    """
    config = choose_seed(run, seed)[0]
    seeds = config.seeds if seed is None else (seed,)
    for number in seeds:
        with edit_run(run, number) as editing:
            editing.model.admit(names)
            before = editing.model.control
            if before is not None:  # what was chosen before stays chosen
                editing.model.calibrate(risk=before.risk, confidence=before.confidence, admit=names)


@dataclass
class Editing:
    """A change of a run's experts that is being prepared; it is committed at the end of `edit_run`.

    Attributes
    ----------
    model
        The model of the seed; its library is changed together with the folder.
    transaction
        Where new files are written.
    features
        The splits of the run as features.
    seed
        The seed.
    admit, tell
        Calls a check of a new expert, which may refuse it; receives warnings.
    added
        The new experts.
    owners
        What the statistics of each expert that comes or goes do to the base; None where it brings none.
    """

    model: Model
    transaction: Transaction
    features: Features
    seed: int
    admit: Callable[[Callable[[], None]], None]
    tell: Callable[[str], None]
    added: list[str] = field(default_factory=list)
    owners: dict[str, Contribution | None] = field(default_factory=dict)

    def add(self, expert: Expert, unverified: bool = False) -> str:
        """Add an expert after measuring it on the run's own data, and return its name."""
        name = self.model.experts.add(expert, unverified)
        self._write(name)
        return name

    def remove(self, name: str) -> Path:
        """Remove an expert; return the folder that it is kept in."""
        self.owners[name] = self.model.experts.contribution(name)
        self.model.experts.remove(name)
        return self._move_out(name)

    def replace(self, name: str, expert: Expert, unverified: bool = False) -> Path:
        """Replace an expert after measuring the new one; return the folder that the old one is kept in."""
        self.model.experts.replace(name, expert, unverified)
        kept = self._move_out(name)
        self._write(expert.name)
        return kept

    def _write(self, name: str) -> None:
        model, folder = self.model, self.transaction.folder
        share, salt = model.config.ownership.calibration, model.experts.fingerprint["base weights"]
        self.admit(lambda: check_rows(model.experts[name], self.features, share, self.seed, salt, self.tell))
        self.owners[name] = model.experts.contribution(name)
        self.admit(lambda: check_contribution(name, self.owners[name]))
        self.added.append(name)
        anchors = read_shared(folder / "shared.safetensors")
        validation = self.features.choices(model.config.ownership.calibration, self.seed)
        domains = model.info.domains
        index = domains.index(name) if name in domains else -1
        own = validation.only((validation.domains == index).nonzero()[:, 0])
        dataset = expert_data(name, own, own, anchors, domains)
        measured = measure_expert(model.experts[name], model.config, dataset, model.base, model.info.unit)
        model.experts.put(measured)
        measured.save(self.transaction.new(f"experts/{check_name(name)}"))

    def _move_out(self, name: str) -> Path:
        kept, number = f"removed/{to_safe_name(name)}", 1
        while (self.transaction.folder / kept).exists():
            number += 1
            kept = f"removed/{to_safe_name(name)} {number}"
        self.transaction.move(f"experts/{name}", kept)
        return self.transaction.folder / kept


@contextmanager
def edit_run(
    run: Path,
    seed: int | None = None,
    force: bool = False,
    tell: Callable[[str], None] = log.warning,
    show: Show | None = None,
) -> Iterator[Editing]:
    """Lock a run and change its experts in one transaction; parts, results, summary and report follow.

    Parameters
    ----------
    run
        The run folder.
    seed
        Which seed of the run; the first by default.
    force
        Whether new experts are taken although a check refuses them; `tell` then receives the reason.
    tell
        Receives warnings.
    show
        As for `add_expert`; it is called after the change.
    """

    def admit(check: Callable[[], None]) -> None:
        try:
            check()
        except RefusedError as error:
            if not force:
                raise
            tell(f"taken by force: {str(error).rpartition(';')[0]}")

    config, seed = choose_seed(run, seed)
    folder = run / f"seed-{seed}"
    with lock_run(run, config):
        model = load_seed(folder, config)
        features = read_features(folder / "features.safetensors")
        choices = features.choices(config.ownership.calibration, seed)
        compared = show is not None and len(choices) > 0
        before = SplitAnswers.on_choices(model, choices) if compared else None
        with edit(folder) as transaction:
            editing = Editing(model, transaction, features, seed, admit, tell)
            yield editing

            def check(stored: StoredParts) -> None:
                bank_id = config.controlled_bank
                if editing.added and bank_id is not None:
                    name, control = ", ".join(editing.added), model.current_control()
                    admit(lambda: check_harm(name, control, stored.banks[bank_id]))

            _conclude(transaction, model, features, config, seed, check)
            after = SplitAnswers.on_choices(model, choices) if compared else None
        if show is not None and before is not None and after is not None:
            change = compare_domains(before, after, model, choices)
            show(change | {"rule": model.rule, "owners": describe_owners(editing.owners)})


def _conclude(
    transaction: Transaction,
    model: Model,
    features: Features,
    config: RunConfig,
    seed: int,
    check: Callable[[StoredParts], None] = lambda _: None,
) -> None:
    """Compute what follows from the experts and the router anew: parts, risk control, results, summary, report."""
    stored = write_test_parts(transaction, model, features.test)
    check(stored)
    control = model.current_control() if config.controlled_bank else None
    renew(transaction, config, seed, stored, control, model)


def train_expert(
    source: Path | Kit,
    name: str,
    data: Path,
    out: Path,
    text: str | None = None,
    label: str | None = None,
    dtype: str = "float32",
    seed: int | None = None,
    new_classes: bool = False,
    row_hashes: bool = True,
    statistics: bool = True,
) -> Expert:
    """Train one expert alone from its own data, with the base and the shared examples of a run, and write it.

    Parameters
    ----------
    source
        A run folder, of which only config.json and the seed's model.json, base.safetensors and shared.safetensors are
        read; or what `read_kit` returns for a kit of the run.
    name
        Name of the expert's domain.
    data
        Its examples: JSONL, CSV, Parquet or .npz.
    out
        Folder to write the expert to.
    text, label
        Columns of the file, where they have other names than usual.
    dtype
        Precision that the expert is stored in: float32, bfloat16 or float16.
    seed
        Which seed of the run; the first by default.
    new_classes
        Accept labels that the base does not know: the expert brings them as classes of its own.
    row_hashes
        Whether the expert carries hashes of its rows, by which the run notices examples that it must not know.
    statistics
        Whether it brings statistics of its examples, where the run uses them, so that the base learns from them.
    """
    check_name(name)
    if dtype not in DTYPES:
        raise RedxError(f"An expert cannot be kept as {dtype!r}; choose one of {', '.join(DTYPES)}.")
    if (out / "expert.json").exists():
        raise RedxError(f"There is an expert in {out} already; choose another folder with --out.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RedxError(f"{out} is not empty; choose another folder with --out.")
    kit = source if isinstance(source, Kit) else kit_of_run(source, seed)
    config, info, base, seed = kit.config, kit.info, kit.base, kit.seed
    try:
        split, new = read_own_data(kit.task, info.classes, info, base, data, text, label, new_classes)
    except RedxError as error:
        if NO_CLASS not in str(error):
            raise
        raise RedxError(f"{str(error)[:-1]}, or give --new-classes if the expert brings new classes.") from error
    check_new_classes(name, new, info.classes, ())
    own = embed_split(config, base, split)
    if len(own) < MIN_EXAMPLES:
        raise RedxError(f"{data} has {len(own)} examples; an expert needs at least {MIN_EXAMPLES}.")
    draw = generator(seed, "own data", name)
    if new:
        for label_index, label_name in enumerate(new, len(info.classes)):
            if (count := int((own.labels == label_index).sum())) < MIN_NEW:
                raise RedxError(
                    f"{data} has {count} examples of the new class {label_name!r:.100}, and it takes {MIN_NEW}; "
                    "give more, or correct the label if it is a known one."
                )
        held_out = torch.from_numpy(sample_per_group(own.labels.numpy(), HELD_OUT, 1, draw))
        kept, held = (~held_out).nonzero()[:, 0], held_out.nonzero()[:, 0]
    else:
        rows = torch.randperm(len(own), generator=draw)
        count = max(2, round(HELD_OUT * len(own)))
        kept, held = rows[count:], rows[:count]
    dataset = expert_data(name, own.only(kept), own.only(held), kit.anchors, info.domains)
    fingerprint = kit.check_base()
    extended, classes = extend_base(base, len(new)), (*info.classes, *new)
    origin = {"task": kit.task, "preset": kit.preset}
    shared = without_copies(config, kit.anchors) if statistics else None
    settings = config, [dataset], extended, seed, info.unit, classes, fingerprint, dtype, origin
    (expert,) = train_experts(*settings, shared=shared)
    if row_hashes:
        expert = with_row_hashes(expert, own.inputs, fingerprint["base weights"])
    with new_folder(out) as unfinished:
        expert.save(unfinished)
        entries = list_folder(unfinished)  # so that damage on its way is noticed
        write_bytes(unfinished / MANIFEST, format_manifest(entries))
    return expert


def read_own_data(
    task: str,
    classes: Sequence[str],
    info: ModelInfo,
    base: Base,
    file: Path,
    text: str | None,
    label: str | None,
    new_classes: bool = False,
) -> tuple[Split, tuple[str, ...]]:
    """Return a user's own examples of one domain, as the base reads them, and the labels that are new classes."""
    if not classes:
        raise RedxError(f"The experts of '{task}' give numbers, not labels, and cannot be trained from a file.")
    shape = None if base.encoder.reads_text else info.shape
    if new_classes:
        split, new = read_new_classes(file, classes, shape, text, label)
    else:
        split, new = read_labelled(file, classes, shape, text, label), ()
    base.encoder.prepare([split.inputs])
    return split, new


def retrain_router(
    run: Path,
    more: Mapping[str, Path],
    text: str | None = None,
    label: str | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """Train the router of a run for the experts that it has now.

    Parameters
    ----------
    run
        The run folder.
    more
        Data files by expert, for experts whose data the run does not have.
    text, label
        Columns of these files, where they have other names than usual.
    seed
        Which seed of the run; the first by default.

    Returns
    -------
    dict
        The experts that the router now has gates for, and the number of training examples.
    """
    config, seed = choose_seed(run, seed)
    if not config.router.is_trained:
        raise RedxError(f"{run} routes by the experts' own scores (keys): there is no router to train.")
    seed_folder = run / f"seed-{seed}"
    with lock_run(run, config):
        model = load_seed(seed_folder, config)
        names = model.experts.names
        features = read_features(seed_folder / "features.safetensors")
        if unknown := sorted(set(more) - set(names)):
            raise RedxError(f"There is no expert {unknown[0]!r}; choose from {', '.join(names)}.")
        if lacking := [name for name in names if name not in model.info.domains and name not in more]:
            raise RedxError(
                f"{run} has no data of {lacking[0]!r} to train a router with; "
                f"give it with --domain {lacking[0]} --data FILE."
            )
        choices = features.choices(config.ownership.calibration, seed)
        train = _rows_with_expert(model, features.train)
        validation = _rows_with_expert(model, choices)
        for name, file in more.items():
            examples, _ = read_own_data(config.task, model.classes, model.info, model.base, file, text, label)
            own = embed_split(config, model.base, examples)
            own = Split(own.inputs, own.labels, torch.full((len(own),), names.index(name)))
            held = torch.arange(len(own)) < max(1, round(HELD_OUT * len(own)))
            validation = concatenate([validation, own.only(held.nonzero()[:, 0])])
            train = concatenate([train, own.only((~held).nonzero()[:, 0])])
        router = train_router(config.router, names, train, validation, seed)
        info = dataclasses.replace(model.info, routed=names)
        model.info, model.router, model.routing = info, TrainedRouter(router, names), TRAINED
        with edit(seed_folder) as transaction:
            write_tensors(transaction.new("router.safetensors"), router.state_dict())
            write_json(transaction.new("model.json"), dataclasses.asdict(info))
            _conclude(transaction, model, features, config, seed)
    return {"experts": list(names), "examples": len(train)}


def _rows_with_expert(model: Model, split: Split) -> Split:
    """Return the examples whose domain has an expert; their domains count as the experts do."""
    domains = model.expert_index(split.domains)
    rows = (domains < len(model.experts)).nonzero()[:, 0]
    return Split(split.inputs[rows], split.labels[rows], domains[rows])
