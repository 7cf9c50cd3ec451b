"""What `redx check` demands of a run: floors from options, and from a redx.toml in the run folder or beside it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeGuard

from redx.errors import RedxError
from redx.io.folders import check_links
from redx.io.reading import exists, read_toml

FILE, SECTION = "redx.toml", "check"
RULE, CONFIDENCE = "red", 0.95


@dataclass(frozen=True)
class Floors:
    """What a run must reach, as shares from 0 to 1; None demands nothing.

    Attributes
    ----------
    min_accuracy
        Smallest lower bound of clean accuracy.
    min_certified
        Smallest lower bound of the share of examples that are right under any router.
    max_harm
        Largest upper bound of the share of examples that the base gets right and some router gets wrong.
    max_risk
        Largest risk that the run may be calibrated for.
    min_domain
        Smallest lower bound of clean accuracy in the worst domain.

    Raises
    ------
    RedxError
        If a floor is no number from 0 to 1.

    Examples
    --------
    >>> Floors(min_accuracy=0.9).given()
    {'min_accuracy': 0.9}
    >>> Floors(min_accuracy=90)
    Traceback (most recent call last):
    redx.errors.RedxError: The floor min-accuracy is a number from 0 to 1, not 90; write 0.9 for 90 %.
    """

    min_accuracy: float | None = None
    min_certified: float | None = None
    max_harm: float | None = None
    max_risk: float | None = None
    min_domain: float | None = None

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            if not _is_number(value) or not 0 <= value <= 1:
                example = value / 100 if _is_number(value) and 1 < value <= 100 else 0.01 if name[:3] == "max" else 0.9
                raise RedxError(
                    f"The floor {name.replace('_', '-')} is a number from 0 to 1, not {_short(value)}; "
                    f"write {example:g} for {100 * example:g} %."
                )

    def given(self) -> dict[str, float]:
        """Return the floors that demand something, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class CheckSettings:
    """All settings of a check.

    Attributes
    ----------
    floors
        What the run must reach.
    against
        The run that it must not be worse than; None for no comparison.
    rule
        The rule that is checked, or `rule/bank`.
    confidence
        Probability with which every single bound holds.
    file
        The redx.toml that was read; None if there is none.
    """

    floors: Floors
    against: Path | None = None
    rule: str = RULE
    confidence: float = CONFIDENCE
    file: Path | None = None


FLOORS = tuple(field.name for field in fields(Floors))
NAMES = (*FLOORS, "against", "rule", "confidence")


def read_settings(run: Path, **options: Any) -> CheckSettings:
    """Return the settings of a check: those of redx.toml, and options, which win.

    The file is RUN/redx.toml, or else redx.toml in the folder that holds the run. Its section `[check]` has the names
    of the options with underscores; `against` is relative to the file.

    Parameters
    ----------
    run
        The run folder.
    **options
        The fields of `Floors`, and `against`, `rule` and `confidence`; None leaves what the file says.

    Raises
    ------
    RedxError
        If the file is no TOML or has unknown names, or if a setting cannot be used.
    """
    check_links(run)
    parent = run.resolve().parent if run.name in ("", "..") else run.parent
    file = next((path for path in (run / FILE, parent / FILE) if exists(path)), None)
    settings = _read_section(file) if file else {}
    settings |= {name: value for name, value in options.items() if value is not None}
    floors = Floors(**{name: settings.get(name) for name in FLOORS})
    against = settings.get("against")
    rule, confidence = settings.get("rule", RULE), check_confidence(settings.get("confidence", CONFIDENCE))
    return CheckSettings(floors, Path(against) if against else None, rule, confidence, file)


def _read_section(file: Path) -> dict[str, Any]:
    """Return the section [check] of a file; `against` becomes a path from here."""
    content = read_toml(file)
    for name, value in content.items():
        if not isinstance(value, dict):
            raise RedxError(f"{file} has {_short(name)} outside of a section; write [{SECTION}] in a line above it.")
        if name != SECTION:
            raise RedxError(f"{file}: redx reads no section [{_short(name)[1:-1]}]; write [{SECTION}].")
    section: dict[str, Any] = content.get(SECTION, {})
    for name, value in section.items():
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.0)
            raise RedxError(f"{file}: there is no setting {_short(name)}; the nearest is '{near[0]}'.")
        if name in ("against", "rule") and not isinstance(value, str):
            raise RedxError(f"{file} has {name} = {_short(value)}, which is no text; write it in quotes.")
    try:
        Floors(**{name: value for name, value in section.items() if name in FLOORS})
        check_confidence(section.get("confidence", CONFIDENCE))
    except RedxError as error:
        raise RedxError(f"{file}: {error}") from error
    if "against" in section:
        return section | {"against": file.parent / section["against"]}
    return section


def check_confidence(confidence: float) -> float:
    """Return a confidence unchanged, or raise `RedxError` unless it lies between 0 and 1."""
    if not _is_number(confidence) or not 0 < confidence < 1:
        raise RedxError(f"A confidence lies between 0 and 1, not {_short(confidence)}; choose one such as 0.95.")
    return confidence


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: object) -> str:
    """Return a value as it is shown in a sentence; Python refuses to write integers of thousands of digits."""
    if isinstance(value, int) and abs(value) > 10**15:
        return "so large a number"
    return f"{value:g}" if _is_number(value) else repr(value)[:60]
