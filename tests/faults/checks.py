"""Break a command at one point, and check that nothing is lost and that it can be repeated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.injection import CRASHED, NO_SPACE, Ended, run_child
from faults.worlds import State, Verb, Worlds, answers_of, ask, leftovers, state_of
from redx.io.reading import read_json

RUNS = ("run", "fewer")


@dataclass(frozen=True)
class Reference:
    """A world before and after a command that was not interrupted.

    Attributes
    ----------
    operations
        The changes of files that the command makes.
    before, after
        Hashes of the files.
    said_before, said_after
        What readers say about the run that the command changes.
    rules
        Number of rules in the summary of the run.
    """

    operations: list[str]
    before: State
    after: State
    said_before: dict[str, Any]
    said_after: dict[str, Any]
    rules: int


def make_reference(worlds: Worlds, verb: Verb) -> Reference:
    """Run a command without a fault."""
    world = worlds.copy(verb)
    with worlds.inside(world):
        before, said_before = state_of(world), answers_of(_run_of(verb))
        ended = run_child(verb.words, world)
        assert ended.code == 0, ended
        after, said_after = state_of(world), answers_of(_run_of(verb))
        rules = 0
        if verb.changes_run:
            assert ask(_run_words(worlds, _run_of(verb)))[0] == 0
            rules = _rules(_run_of(verb))
    return Reference(ended.operations, before, after, said_before, said_after, rules)


def break_at(worlds: Worlds, verb: Verb, reference: Reference, at: int, mode: str) -> list[str]:
    """Return what is wrong after a command failed at one operation; nothing is the expected answer."""
    world = worlds.copy(verb)
    with worlds.inside(world):
        ended = run_child(verb.words, world, at, mode)
        return check(world, verb, reference, worlds, ended, mode)


def check(world: Path, verb: Verb, reference: Reference, worlds: Worlds, ended: Ended, mode: str) -> list[str]:
    """Return what is wrong in a world after a command ended early: its state, its repetition, and the next run."""
    problems = _check_ending(ended, mode)
    run = _run_of(verb)
    problems += _complete(run, reference)
    answers, state = answers_of(run), state_of(world)
    is_after = state == reference.after
    if verb.whole:
        if state not in (reference.before, reference.after):
            problems.append(f"the state is neither before nor after: {_difference(state, reference)}")
        elif answers != (reference.said_after if is_after else reference.said_before):
            problems.append("readers do not say what they say before or after")
    else:
        for name, digest in state.items():
            if digest not in (reference.before.get(name), reference.after.get(name)) and name not in verb.steps:
                problems.append(f"{name} is neither as before nor as after")
    if lost := [name for name in reference.before if name in reference.after and name not in state]:
        problems.append(f"lost: {lost[:3]}")

    if not is_after or verb.repeats:
        code, out = ask(verb.words)
        if code:
            problems.append(f"repeated: exit code {code}, {out[-300:]}")
        elif (now := state_of(world)) != reference.after:
            problems.append(f"repeated: another state, {_difference(now, reference)}")
    answers = answers_of(run)
    if answers != reference.said_after:
        different = [name for name in answers if answers[name] != reference.said_after.get(name)]
        problems.append(f"repeated: readers say something else ({different})")
    if verb.changes_run:
        code, out = ask(_run_words(worlds, run))
        if code:
            problems.append(f"the next run: exit code {code}, {out[-300:]}")
        elif _rules(run) != reference.rules:
            problems.append("the next run: another number of rules")
    if left := leftovers(world):
        problems.append(f"left over: {left}")
    return problems


def _complete(run: Path, reference: Reference) -> list[str]:
    """Complete a change that was interrupted, where there is one.

    Until then readers refuse the run, or say what they say before or after: the change may be of another seed.
    """
    if not [*run.glob("seed-*/.journal.json"), *run.glob(".journal.json")]:
        return []
    told = [
        name
        for name, answer in answers_of(run).items()
        if "complete it with `redx recover" not in str(answer)
        and answer not in (reference.said_before.get(name), reference.said_after.get(name))
    ]
    code, out = ask(["recover", str(run)])
    return [*(f"{name} reads an interrupted change" for name in told), *([f"recover: {code}, {out}"] if code else [])]


def _check_ending(ended: Ended, mode: str) -> list[str]:
    if mode in (*NO_SPACE, "readonly"):
        is_sentence = ended.err.startswith("redx: ") and ended.err.count("\n") == 1
        if ended.code == 0 or (ended.code == 2 and is_sentence):
            return []
        return [f"exit code {ended.code}: {ended.err[-400:]}"]
    if ended.code not in (CRASHED, 0):
        return [f"exit code {ended.code}: {ended.err[-400:]}"]
    return []


def _run_of(verb: Verb) -> Path:
    return Path(next((name for name in ("fewer", "lm", "saved") if name in verb.words), "run"))


def _run_words(worlds: Worlds, run: Path) -> list[str]:
    """Return the command that made a run; for a library without a run, a further change."""
    if run == Path("saved"):
        return ["adapters", "add", "saved", "lm/seed-0/adapters/upper", "--name", "next"]
    if run == Path("lm"):
        return worlds.adapter_words
    return ["run", *(str(run) if word == "run" else word for word in worlds.run_words[1:])]


def _rules(run: Path) -> int:
    return len(read_json(run / "summary.json")["rules"]) if (run / "summary.json").exists() else 0


def _difference(state: State, reference: Reference) -> list[str]:
    names = {*state, *reference.after}
    return sorted(name for name in names if state.get(name) != reference.after.get(name))[:5]
