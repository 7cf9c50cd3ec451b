"""Settings of a check: redx.toml in the run folder or beside it, and options, which win."""

from __future__ import annotations

from pathlib import Path

import pytest

from redx.errors import RedxError
from redx.runs.check import CheckSettings, Floors, read_settings


def test_the_file_in_the_run_comes_before_the_one_beside_it_and_options_before_both(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    assert read_settings(run) == CheckSettings(Floors())
    (tmp_path / "redx.toml").write_text('[check]\nmin_accuracy = 0.5\nrule = "sum"\nagainst = "main"\n')
    beside = read_settings(run, max_harm=0.1, rule=None)
    assert beside == CheckSettings(
        Floors(min_accuracy=0.5, max_harm=0.1), tmp_path / "main", "sum", 0.95, tmp_path / "redx.toml"
    )
    (run / "redx.toml").write_text("[check]\nmin_accuracy = 1\nconfidence = 0.9\n")
    inside = read_settings(run, min_accuracy=0.25)
    assert inside == CheckSettings(Floors(min_accuracy=0.25), None, "red", 0.9, run / "redx.toml")


def test_the_file_beside_the_present_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "redx.toml").write_text("[check]\nmin_accuracy = 0.5\n")
    (tmp_path / "run" / "seed-0").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "run")
    assert read_settings(Path(".")).floors.min_accuracy == 0.5
    monkeypatch.chdir(tmp_path / "run" / "seed-0")
    assert read_settings(Path("..")).floors.min_accuracy == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[check]\nmin_acuracy = 0.9", "no setting 'min_acuracy'; the nearest is 'min_accuracy'"),
        ("[check]\nmin-domain = 0.9", "the nearest is 'min_domain'"),
        ("[check]\njunit = 'x.xml'", "no setting 'junit'"),
        ("[chek]\nmin_accuracy = 0.9", r"no section \[chek\]; write \[check\]"),
        ("min_accuracy = 0.9", r"outside of a section; write \[check\]"),
        ("[check]\nmin_accuracy 0.9", "at line 2"),
        ("[check]\nmin_accuracy = 90", "write 0.9 for 90 %"),
        ("[check]\nmax_harm = -1", "write 0.01 for 1 %"),
        ("[check]\nmin_accuracy = nan", "from 0 to 1, not nan"),
        ("[check]\nmin_accuracy = 0x" + "f" * 9000, "so large a number"),
        ("[check]\nmin_accuracy = " + "9" * 5000, "is no TOML file"),
        ("[check]\nmin_accuracy = true", "not True"),
        ("[check]\nmin_accuracy = '0.9'", "not '0.9'"),
        ("[check]\nconfidence = 1", "confidence lies between 0 and 1, not 1;"),
        ("[check]\nrule = 3", "write it in quotes"),
        ("x = " + "[" * 100_000, "is no TOML file"),
        ("[check]\n# " + "x" * 2**20, "larger than"),
    ],
    ids=lambda value: value[:40],
)
def test_mistakes_in_the_file_are_named_with_the_file(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "redx.toml").write_text(text)
    with pytest.raises(RedxError, match=message) as caught:
        read_settings(tmp_path / "run", min_domain=0.1)
    assert str(tmp_path / "redx.toml") in str(caught.value)


@pytest.mark.parametrize("value", [-0.1, 1.01, float("nan"), float("inf"), True, "0.5"])
def test_floors_are_shares(value: object) -> None:
    with pytest.raises(RedxError, match="max-risk is a number from 0 to 1"):
        Floors(max_risk=value)  # pyright: ignore[reportArgumentType]
    assert Floors(max_risk=0, min_domain=1).given() == {"max_risk": 0, "min_domain": 1}
