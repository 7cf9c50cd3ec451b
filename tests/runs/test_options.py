"""Options of `redx run TASK` come from the settings, and any setting can be changed by its dotted name."""

import shlex
from pathlib import Path

import pytest

from redx.cli import main
from redx.config import RunConfig
from redx.errors import RedxError
from redx.runs.options import OPTIONS, find_field, leaf_settings
from redx.runs.presets import configure, reproduce
from redx.tasks import TASKS


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_a_setting_with_a_help_text(name: str) -> None:
    assert find_field(OPTIONS[name].path).description


@pytest.mark.parametrize("name", TASKS)
def test_every_task_lists_known_options_once(name: str) -> None:
    options = TASKS[name].options
    assert options
    assert set(options) <= set(OPTIONS)
    assert len(set(options)) == len(options)
    flags = [OPTIONS[option].flag for option in options]
    assert len(set(flags)) == len(flags)


def test_help_of_a_task_lists_only_what_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "jsonl", "--help"])
    text = capsys.readouterr().out
    assert "--domain" in text
    assert "--set" in text
    assert "--operators" not in text
    assert "--decomposer" not in text
    with pytest.raises(SystemExit):
        main(["run", "toy", "--help"])
    assert "--backbone" not in capsys.readouterr().out


def test_a_setting_is_changed_by_its_dotted_name() -> None:
    changed = configure("features", assignments=["base.trunk.depth=3", "banks.residual/plain.hidden=5", "seeds=[4, 5]"])
    assert changed.base.trunk.depth == 3
    assert changed.seeds == (4, 5)
    before, after = (dict(leaf_settings(one.model_dump())) for one in (configure("features"), changed))
    different = {path for path in before if before[path] != after[path]}
    assert different == {"base.trunk.depth", "banks.residual/plain.hidden", "seeds"}


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("base.trunk.deepth=3", "did you mean 'base.trunk.depth'"),
        ("depth=3", "There is no setting 'depth'"),
        ("base.trunk.depth", "sets nothing"),
        ("=3", "sets nothing"),
        ("base.trunk.depth=many", "Setting 'base.trunk.depth' is not usable"),
        ("base.trunk.depth=-1", "Setting 'base.trunk.depth' is not usable"),
        ("base.trunk=3", "did you mean 'base.trunk."),
    ],
)
def test_a_wrong_assignment_is_refused_in_one_sentence(assignment: str, words: str) -> None:
    with pytest.raises(RedxError, match=words):
        configure("features", assignments=[assignment])


@pytest.mark.parametrize(
    "config",
    [
        configure("toy", "quick", seeds=[3, 4], epochs={"experts": 7}, study="none"),
        configure("addition", "strong", trunk="mlp", blocks=[2, 4], run="red"),
        configure("jsonl", file="a b.csv", label="stars", clusters=4),
        configure("mnist", batch=99, patience=2, assignments=["base.training.lr=0.5", "levels=[0.0, 1.0]"]),
        configure("intents", data_dir="a b", shots=10),
        configure("steps", decomposer="lm", integrate=True, routing="linear"),
        configure("ops", file="questions.jsonl", operations=["add", "div"]),
    ],
    ids=lambda config: config.task,
)
def test_the_command_in_a_report_repeats_the_settings(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    command, inexpressible = reproduce(config)
    assert inexpressible == []
    asked = []

    def run(name: str, preset: str, assignments: list[str] = [], out: None = None, **changes: object) -> None:  # noqa: B006
        asked.append(configure(name, preset, assignments, **changes))
        raise SystemExit(0)

    for file in ("a b.csv", "questions.jsonl"):
        Path(file).touch()
    monkeypatch.setattr("redx.runs.pipeline.run", run)
    with pytest.raises(SystemExit):
        main(shlex.split(command)[1:])
    assert asked == [config]
