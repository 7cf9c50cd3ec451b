"""Fingerprints: every change of a base shows, and rounding does not."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.models import changed_base, identity_base
from redx.config import RunConfig
from redx.models.fingerprint import base_differences, fingerprint_base
from redx.runs.presets import configure

CONFIG: RunConfig = configure("toy", "quick")


def fingerprint(**changes: Any) -> dict[str, Any]:
    return fingerprint_base(changed_base(**changes), CONFIG, ("a", "b"), (16,))


def test_the_same_base_has_the_same_fingerprint() -> None:
    assert fingerprint() == fingerprint()
    assert base_differences(fingerprint(), fingerprint()) == []


def test_other_weights_classes_and_shapes_show() -> None:
    base = identity_base()
    assert base_differences(fingerprint(bias=base.bias + 1), fingerprint()) == ["base weights"]
    other = fingerprint_base(base, CONFIG, ("a", "c"), (16,))
    assert base_differences(other, fingerprint()) == ["classes"]
    moved = fingerprint()
    moved["feature settings"] = "other"
    assert base_differences(moved, fingerprint()) == ["feature settings"]


@pytest.mark.parametrize(("shift", "differs"), [(1e-4, False), (0.1, True)])
def test_probe_features_may_differ_by_rounding_only(shift: float, differs: bool) -> None:
    ours = fingerprint()
    theirs = ours | {"probe": [[value + shift for value in row] for row in ours["probe"]]}
    assert base_differences(theirs, ours) == (["features of the probe batch"] if differs else [])
    shorter = ours | {"probe": [row[:-1] for row in ours["probe"]]}
    assert base_differences(shorter, ours) == ["features of the probe batch"]
