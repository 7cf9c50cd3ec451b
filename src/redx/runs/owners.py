"""Calibrate where the data are: an owner's thresholds as a file, and a finished run calibrated from such files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redx.composition.owners import OwnerFile, read_owner_file, write_owner_file
from redx.config import RunConfig
from redx.errors import RedxError
from redx.io.manifest import is_expected
from redx.io.reading import check_path, exists
from redx.model.model import Model
from redx.model.persistence import is_saved_model
from redx.model.thresholds import measure_own
from redx.models.calibration import read_compared
from redx.runs.calibration import keep_control, risk_figures
from redx.runs.editing import edit_run, read_own_data
from redx.runs.folder import ask_model, choose_seed, load, load_seed, lock_run, read_config
from redx.training.datasets import read_feature_split
from redx.training.features import embed_split


def export_thresholds(
    folder: Path,
    data: Path,
    out: Path,
    text: str | None = None,
    label: str | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """Write the thresholds of an owner's examples to a file; nothing else of them leaves, and nothing else is written.

    Parameters
    ----------
    folder
        The run folder, or a folder that `save_pretrained` wrote, which holds no calibration example if so wished.
    data
        The owner's examples, as `redx experts train` reads them; nothing was trained or chosen on them.
    out
        The JSON file to write; there must be none.
    text, label
        Columns of the data, where they have other names than usual.
    seed
        Which seed of the run; the first by default.

    Returns
    -------
    dict
        `file`, `seed`, `model` (hash of what was measured), `examples` and `domains`: the number of examples by domain.
    """
    check_path(out)
    if exists(out):
        raise RedxError(f"There is a file {out} already; choose another name with --export.")
    if is_saved_model(folder):
        if seed is not None:
            raise RedxError(f"{folder} is a saved model, which has one seed alone; leave out --seed.")
        sent = _measure(load(folder), "a saved model", data, text, label, None)
    else:
        config, number = choose_seed(folder, seed)

        def measure(model: Model) -> OwnerFile:
            return _measure(model, config.task, data, text, label, number, folder / f"seed-{number}")

        sent = ask_model(folder, number, measure)
    write_owner_file(out, sent)
    counts = {name: one.examples for name, one in sent.domains.items()}
    total = sum(counts.values())
    return {"file": str(out), "seed": sent.seed, "model": sent.model, "examples": total, "domains": counts}


def _measure(
    model: Model,
    task: str,
    data: Path,
    text: str | None,
    label: str | None,
    seed: int | None,
    home: Path | None = None,
) -> OwnerFile:
    """Return the thresholds of the examples in a file; `home` is the folder of the run's seed."""
    if model.config.controlled_bank is None:
        raise RedxError(
            "This model has no experts under risk control; repeat its `redx run` with this version of redx."
        )
    split, _ = read_own_data(task, model.classes, model.info, model.base, data, text, label)
    own = embed_split(model.config, model.base, split)
    others = {}
    if home is not None and is_expected(home / "features.safetensors"):
        others["of the run's training data"] = read_feature_split(home / "features.safetensors", "train")
    return measure_own(model, own, seed, others)


def calibrate_from(
    run: Path,
    files: Sequence[Path],
    risk: float | None = None,
    confidence: float | None = None,
    budget: str | None = None,
    seed: int | None = None,
) -> dict[int, dict[str, Any]]:
    """Set the cut-off of every domain of a finished run by the thresholds that its owner sent; nothing is trained.

    The experts are silent in domains without a file, and in those with too few examples for the risk.

    Parameters
    ----------
    run
        The run folder.
    files
        What owners sent, as `export_thresholds` writes it, in any order.
    risk
        Bound on the harm of the worst router in every domain; 0.01 by default.
    confidence
        None: the bound holds on average over calibration sets. Otherwise it holds with this probability.
    budget
        Whether the risk bounds all harm (`harm`), or the harm that routers do (`routing`); None: as before.
    seed
        Which seed of the run; by default the one that the files name.

    Returns
    -------
    dict
        By seed, what it promises now and what its test split shows, as `risk_figures` returns it.
    """
    config = read_config(run)
    if seed is None:
        named = sorted({one.seed for one in map(read_owner_file, files) if one.seed is not None})
        if len(named) > 1:
            raise RedxError(
                f"The files are of the seeds {', '.join(map(str, named))}; give those of one seed, and repeat the "
                "command for the others."
            )
        seed = named[0] if named and named[0] in config.seeds else None
    number = choose_seed(run, seed)[1]
    folder = run / f"seed-{number}"
    with lock_run(run, config):
        model = load_seed(folder, config)
        control = model.calibrate_from(files, risk=risk, confidence=confidence, budget=budget, seed=number)
        compared = {bank_id: other.at(*control.promise) for bank_id, other in read_compared(folder).items()}
        keep_control(run, config, number, control, compared)
    return {number: risk_figures(run, number) or {}}


def calibrate_own(run: Path, seed: int | None = None) -> None:
    """Calibrate a run on its own calibration examples again, with the promise that it was made with.

    Parameters
    ----------
    run
        The run folder.
    seed
        Which seed of the run; all of them by default.
    """
    config: RunConfig = choose_seed(run, seed)[0]
    for number in config.seeds if seed is None else (seed,):
        with edit_run(run, number) as editing:
            model = editing.model
            before = model.current_control()
            tried = zip(before.names, before.trials, strict=False)
            model.admit([name for name, trial in tried if trial.admitted])
            model.control = None
