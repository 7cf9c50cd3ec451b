"""A run that is killed at random moments gives the same numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.own_data import draw_clouds, write_arrays
from helpers.runs import without_times
from redx.io.reading import read_json


def finish(folder: Path, file: Path, kills: int) -> dict[str, Any]:
    """Run to the end after this many kills, and return the summary."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    changes = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "REDX_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", "helpers.killed_run", str(kills), str(folder / "run"), str(file)]
    subprocess.run(command, check=True, env=os.environ | changes | {"OMP_NUM_THREADS": "1"}, timeout=600)
    return without_times(read_json(folder / "run" / "summary.json"))


@pytest.mark.slow
def test_a_run_killed_at_10_random_moments_gives_the_same_numbers(tmp_path: Path) -> None:
    file = write_arrays(tmp_path / "clouds.npz", **draw_clouds(400))
    killed, calm = tmp_path / "killed", tmp_path / "calm"
    assert finish(killed, file, 10) == finish(calm, file, 0)
    weights = {path.relative_to(calm) for path in (calm / "run").rglob("*.safetensors")}
    assert weights
    for path in weights:
        assert (killed / path).read_bytes() == (calm / path).read_bytes(), path
