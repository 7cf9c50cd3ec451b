"""Two writers at once, and readers while a run is changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from filelock import FileLock

from faults.processes import start, wait
from faults.worlds import Worlds, answers_of, ask
from helpers.commands import Ask, refused

pytestmark = pytest.mark.slow
FEW = ["--rule", "red", "--noise", "swap", "--level", "1", "--epsilon", "1", "--json"]


@pytest.mark.parametrize("name", ["run", "experts add", "experts remove", "experts replace", "router train"])
def test_a_second_writer_is_refused(worlds: Worlds, ask: Ask, name: str) -> None:
    verb = worlds.verbs()[name]
    world = worlds.copy(verb)
    with worlds.inside(world):
        run = Path("fewer" if "fewer" in verb.words else "run")
        run.mkdir(exist_ok=True)
        with FileLock(run / ".lock"):
            refused(ask(*verb.words), "Another run is writing")


def test_readers_see_one_of_two_states_while_a_run_is_changed(worlds: Worlds) -> None:
    world = worlds.copy(worlds.verbs()["experts remove"])
    readers = [["evaluate", "run", *FEW], ["certify", "run", "--json"], ["experts", "list", "run", "--json"]]
    with worlds.inside(world):
        answers = [[_answer(words) for words in readers]]
        kept = Path("run/seed-0/removed/1")
        assert ask(["experts", "remove", "run", "1"])[0] == 0
        answers.append([_answer(words) for words in readers])
        processes = [start(words, world) for words in readers]
        while any(process.poll() is None for process in processes):
            assert ask(["experts", "add", "run", str(kept)])[0] == 0
            assert ask(["experts", "remove", "run", "1"])[0] == 0
            kept = max(kept.parent.iterdir(), key=lambda path: path.stat().st_ctime_ns)
        for number, process in enumerate(processes):
            ended = wait(process)
            if ended.code == 2:
                assert ended.err.startswith("redx: "), ended.err
                assert ended.err.count("\n") == 1, ended.err
                continue
            assert ended.code == 0, ended.err
            assert json.loads(ended.out) in [state[number] for state in answers]


def test_a_model_in_memory_notices_that_its_run_was_changed(worlds: Worlds) -> None:
    import redx

    world = worlds.copy(worlds.verbs()["experts replace"])
    with worlds.inside(world):
        model = redx.load("run")
        assert ask(["experts", "replace", "run", "1", "run/seed-0/experts/1"])[0] == 0
        with pytest.raises(redx.RedxError, match="load the model again"):
            model.experts["1"].tensors()
        assert "refused" not in str(answers_of(Path("run"))["predict"])


def _answer(words: list[str]) -> object:
    code, out = ask(words)
    assert code == 0, out
    return json.loads(out)
