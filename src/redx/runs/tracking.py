"""Training curves of a run for TensorBoard, in the folder `track` of the run."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from redx.errors import RedxError

TRACKERS = ("tensorboard",)
FOLDER = "track"  # in the run folder


def check_tracker(name: str | None) -> None:
    """Raise `RedxError` if there is no such tracker, or its package is not installed."""
    if name is None:
        return
    if name not in TRACKERS:
        raise RedxError(f"There is no tracker {name!r}; choose --track tensorboard.")
    if importlib.util.find_spec("tensorboard") is None:
        raise RedxError("Tracking needs tensorboard; install with: pip install 'redx[track]'.")


class TensorBoardRecorder:
    """Writes the curves of one seed: a folder per stage, and in it one per expert.

    Parameters
    ----------
    folder
        The folder of the seed's curves. That of a learner is emptied when its stage starts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stage, self.writers = "", list[Any]()

    def start(self, stage: str, learners: Sequence[str]) -> None:
        """Begin a stage; curves of an attempt that was interrupted are removed."""
        from torch.utils.tensorboard import SummaryWriter

        self.stage = _path_name(re.sub(r"^seed \d+: ", "", stage))
        home = self.folder / self.stage
        folders = [home / _path_name(name) if name else home for name in learners]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        self.writers = [SummaryWriter(str(folder)) for folder in folders]

    def record(self, learner: int, epoch: int, figures: Mapping[str, float]) -> None:
        """Write the figures of one learner after an epoch."""
        for name, value in figures.items():
            self.writers[learner].add_scalar(f"{self.stage}/{name}", value, epoch)

    def finish(self) -> None:
        """Close the files of the stage."""
        for writer in self.writers:
            writer.close()
        self.writers = []


def recorder_of(track: str | None, run: Path, seed: int) -> TensorBoardRecorder | None:
    """Return what records the training of one seed of a run; None without a tracker."""
    return TensorBoardRecorder(run / FOLDER / f"seed-{seed}") if track else None


def _path_name(name: str) -> str:
    """Return a name as the name of a folder, which tensorboard shows."""
    return re.sub(r"[^\w.+= -]+", "-", name).strip(". ") or "-"
