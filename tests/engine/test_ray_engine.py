"""Ray against local, bit for bit: two nodes of a cluster on this machine, one of which is killed during training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import redx
from helpers.own_data import draw_clouds, write_arrays
from helpers.runs import without_times
from redx.engine import Call, Plan, open_engine, probe, ray_engine
from redx.engine.ray_engine import check_address
from redx.errors import RedxError
from redx.io.reading import read_json

SEEDS = [0, 1]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of one node with one CPU, to which this process is connected."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))  # workers import this module and the helpers
        ray = pytest.importorskip("ray")
        from ray.cluster_utils import Cluster

        cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False},
        )
        try:
            ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


def run(folder: Path, file: Path, engine: str) -> redx.Run:
    epochs = {"base": 3, "experts": 30, "router": 20}
    settings: dict[str, Any] = {"study": "none", "epochs": epochs, "file": str(file), "engine": engine}
    return redx.run("features", "quick", seeds=SEEDS, out=folder, **settings)


def check_same_run(one: redx.Run, other: redx.Run) -> None:
    """Assert that every figure, weight and part of two runs are the same, bit for bit."""
    assert without_times(one.summary) == without_times(other.summary)
    kept = [path.relative_to(one.folder) for path in one.folder.rglob("*") if path.suffix in (".safetensors", ".jsonl")]
    assert len(kept) > 10
    for path in kept:
        assert (one.folder / path).read_bytes() == (other.folder / path).read_bytes(), path
    assert not list(other.folder.rglob(".probe*"))


def has_features(folder: Path) -> bool:
    files = [folder / f"seed-{seed}" / "stages.json" for seed in SEEDS]
    return any(file.exists() and "features" in read_json(file) for file in files)


@pytest.mark.slow
def test_a_run_on_two_nodes_of_which_one_is_killed_gives_the_same_bits(cluster: Any, tmp_path: Path) -> None:
    import ray

    file = write_arrays(tmp_path / "clouds.npz", **draw_clouds(200))
    node = cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    cluster.wait_for_nodes()
    killed: list[float] = []

    def kill_during_training() -> None:
        while not has_features(tmp_path / "ray"):
            time.sleep(0.01)
        cluster.remove_node(node, allow_graceful=False)
        killed.append(time.perf_counter())

    killer = threading.Thread(target=kill_during_training, daemon=True)
    killer.start()
    on_ray = run(tmp_path / "ray", file, "ray")
    killer.join(60)
    assert killed
    deadline = time.monotonic() + 120  # Ray notices the loss of a node after a while
    while (alive := sum(state["Alive"] for state in ray.nodes())) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert alive == 1
    local = run(tmp_path / "local", file, "local")
    check_same_run(local, on_ray)

    for seed in SEEDS:  # and a run that began on Ray continues here
        stages = on_ray.folder / f"seed-{seed}" / "stages.json"
        stages.write_text(json.dumps({name: read_json(stages)[name] for name in ("base", "shared", "features")}))
    check_same_run(local, run(on_ray.folder, file, "local"))


def wait_for(folder: str, name: str) -> str:
    """Write the process id to FOLDER/NAME, and wait until FOLDER/go exists."""
    with open(f"{folder}/{name}", "a") as file:
        file.write(f"{os.getpid()}\n")
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.01)
    return name


def fail(kind: str) -> None:
    if kind == "redx":
        raise RedxError("This fails; do something else.")
    raise ModuleNotFoundError("No module named 'transformers'", name="transformers")


@pytest.mark.slow
def test_a_task_whose_worker_dies_is_started_again(cluster: Any, tmp_path: Path) -> None:
    def kill_first_worker() -> None:
        while not (tmp_path / "one").exists() or not (tmp_path / "one").read_text().endswith("\n"):
            time.sleep(0.01)
        os.kill(int((tmp_path / "one").read_text()), 9)
        (tmp_path / "go").touch()

    def plan() -> Plan[list[Any]]:
        return (yield [Call(wait_for, (str(tmp_path), "one"))])

    threading.Thread(target=kill_first_worker, daemon=True).start()
    with open_engine("ray") as engine:
        assert engine.follow([plan()]) == [["one"]]
    assert len((tmp_path / "one").read_text().split()) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "sentence"), [("redx", "This fails; do"), ("import", "cannot import transformers")])
def test_an_error_of_a_task_is_one_sentence(cluster: Any, kind: str, sentence: str) -> None:
    def plan() -> Plan[list[Any]]:
        return (yield [Call(fail, (kind,))])

    with pytest.raises(RedxError, match=sentence) as failure, open_engine("ray") as engine:
        engine.follow([plan()])
    assert "\n" not in str(failure.value)


@pytest.mark.slow
def test_a_folder_that_workers_cannot_see_is_refused(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_address(cluster.address) == cluster.address
    with open_engine("ray") as engine:
        engine.check_folders([tmp_path])
        assert list(tmp_path.iterdir()) == []
        monkeypatch.setattr(ray_engine, "write_bytes", lambda path, content: path.write_bytes(b"another file"))
        with pytest.raises(RedxError, match=r"cannot read and write .*; choose a folder on storage that all nodes"):
            engine.check_folders([tmp_path])
    assert list(tmp_path.iterdir()) == []


def test_a_worker_without_redx_says_so() -> None:
    """The probe runs in a Python without any packages."""
    code = f"{Path(probe.__file__).read_text()}\nprint(describe_worker({{}})['missing'])"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    missing = done.stdout.strip()
    assert missing in ("torch", "redx")
    with pytest.raises(RedxError, match=f"The worker on here cannot import {missing}; install redx"):
        ray_engine._check_worker({"host": "here", "missing": missing})


def test_a_worker_with_another_version_is_refused() -> None:
    facts = probe.describe_worker({})
    ray_engine._check_worker(facts)
    with pytest.raises(RedxError, match=r"has torch 1\.0 and this process"):
        ray_engine._check_worker(facts | {"torch": "1.0"})
