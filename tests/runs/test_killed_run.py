"""A run that is killed at random moments ends with the same numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, os, random, signal, sys, time
import torch
torch.set_num_threads(1)
import redx
from redx import pipeline
from tiny import changes
kills, folder = int(sys.argv[1]), sys.argv[2]

def child():
    redx.run("toy", "quick", seeds=[0, 1, 2], out=folder, **changes(epochs=150))

chance, done = random.Random(7), 0
while done < kills:
    began = time.monotonic()
    one = os.fork()
    if one == 0:
        sys.stderr = open(os.devnull, "w")
        try:
            child()
        finally:
            os._exit(0)
    time.sleep(chance.uniform(0.05, 1.2))
    os.kill(one, signal.SIGKILL)
    _, status = os.waitpid(one, 0)
    done += os.WIFSIGNALED(status)
    finished = not os.WIFSIGNALED(status)
    if finished:  # killed too late: begin once more, with the results of the middle of a run
        for seed in (1, 2):
            os.remove(f"{folder}/seed-{seed}/stages.json")
child()
"""


def finish(folder: Path, kills: int) -> dict:
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": f"{here}{os.pathsep}{here.parent / 'src'}", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", SCRIPT, str(kills), str(folder)], check=True, env=environment, timeout=600)
    summary = json.loads((folder / "summary.json").read_text())
    return {name: value for name, value in summary.items() if name != "cost"}


def test_killed_at_20_random_moments_ends_the_same(tmp_path: Path) -> None:
    assert finish(tmp_path / "killed", 20) == finish(tmp_path / "calm", 0)
    weights = {path.relative_to(tmp_path / "calm") for path in (tmp_path / "calm").rglob("*.safetensors")}
    assert weights
    for path in weights:
        assert (tmp_path / "killed" / path).read_bytes() == (tmp_path / "calm" / path).read_bytes()
