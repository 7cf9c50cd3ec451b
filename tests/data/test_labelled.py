"""The user's own examples of one domain, read for a model that exists already."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest
import torch

from redx.data.labelled import read_labelled
from redx.data.text import unpack_texts
from redx.errors import RedxError

CLASSES = ("no", "yes")


def test_texts_with_their_labels(tmp_path: Path) -> None:
    records = [{"question": "one", "answer": "yes"}, {"question": "two", "answer": "no"}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    split = read_labelled(tmp_path / "t.jsonl", CLASSES, None)
    assert unpack_texts(split.inputs) == ["one", "two"]
    assert (split.labels.tolist(), split.domains.tolist()) == ([1, 0], [0, 0])
    with pytest.raises(RedxError, match=r"line 1 has the label 'yes', which is no class of this model"):
        read_labelled(tmp_path / "t.jsonl", ("a", "b"), None)


def test_arrays_with_their_labels(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "f.npz", x=numpy.ones((3, 2)), y=numpy.array(["no", "yes", "no"]))
    split = read_labelled(tmp_path / "f.npz", CLASSES, (2,))
    assert torch.equal(split.inputs, torch.ones(3, 2))
    assert split.labels.tolist() == [0, 1, 0]
    with pytest.raises(RedxError, match=r"shape \(3, 2\); this model reads \(N, 5\)"):
        read_labelled(tmp_path / "f.npz", CLASSES, (5,))
    with pytest.raises(RedxError, match=r"Row 2 of .*the label 'yes'"):
        read_labelled(tmp_path / "f.npz", ("no", "never"), (2,))
    numpy.savez(tmp_path / "f.npz", x=numpy.ones((0, 2)), y=numpy.array([], dtype=str))
    with pytest.raises(RedxError, match=r"f\.npz contains no examples; give arrays with one example per row"):
        read_labelled(tmp_path / "f.npz", CLASSES, (2,))
