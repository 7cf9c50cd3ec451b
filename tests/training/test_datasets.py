"""What each learner is trained on: shared subsets, parts of validation, and the data of each expert."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers.models import DOMAINS, draw_expert_datasets, draw_features
from redx.data.dataset import Data, Split
from redx.errors import RedxError
from redx.io.files import write_tensors
from redx.runs.presets import configure
from redx.training import datasets


@pytest.fixture
def data() -> Data:
    """Ten classes in five domains: 500 training, 200 validation and 100 test examples."""
    splits = draw_features(500), draw_features(200, 1), draw_features(100, 2)
    return Data(*splits, tuple(DOMAINS), tuple(map(str, range(10))), "disjoint", 0.0)


def test_the_data_of_an_expert_hold_no_example_of_another_domain() -> None:
    for index, data in enumerate(draw_expert_datasets(draw_features(400))):
        assert data.name == DOMAINS[index]
        assert set(data.own.domains.tolist()) == {index}
        assert set(data.validation.domains.tolist()) == {index}
        assert index not in data.anchors.domains.tolist()


def test_the_shared_subset_has_its_share_of_every_label(data: Data) -> None:
    rows = datasets.shared_rows(data, 0.1, seed=0)
    assert torch.bincount(data.train.labels[rows]).tolist() == [5] * 10
    assert torch.equal(rows, rows.sort().values)
    assert torch.equal(rows, datasets.shared_rows(data, 0.1, seed=0))
    assert not torch.equal(rows, datasets.shared_rows(data, 0.1, seed=1))
    assert torch.bincount(data.train.labels[datasets.shared_rows(data, 0.01, 0, least=3)]).tolist() == [3] * 10


def test_validation_for_choices_and_for_cut_offs_are_apart(data: Data) -> None:
    choices, calibration = datasets.split_validation(data, 0.6, seed=0)
    assert (len(choices), len(calibration)) == (80, 120)
    assert sorted([*choices.tolist(), *calibration.tolist()]) == list(range(200))


def test_the_shared_subset_of_a_run_comes_from_train(data: Data) -> None:
    config = configure("features", "quick", file="x.npz")
    rows = datasets.shared_rows(data, config.base.share, 0, config.base.least)
    assert datasets.select_anchors(data, config, seed=0).digest() == data.train.only(rows).digest()


def test_shared_examples_are_written_and_read(tmp_path: Path) -> None:
    shared, path = draw_features(20), tmp_path / "shared.safetensors"
    write_tensors(path, vars(shared))
    assert datasets.read_shared(path).digest() == shared.digest()
    texts = vars(shared) | {"inputs": torch.zeros(20, 8, dtype=torch.uint8)}
    for tensors in ({"inputs": torch.zeros(1)}, vars(shared) | {"labels": torch.zeros(3)}, texts):
        write_tensors(path, tensors)
        with pytest.raises(RedxError, match="is no shared subset"):
            datasets.read_shared(path)
    write_tensors(path, {"anchors.inputs": torch.zeros(1), "calibration.inputs": torch.zeros(1)})
    with pytest.raises(RedxError, match="older version, which put calibration examples into it"):
        datasets.read_shared(path)


def test_an_expert_of_a_new_domain_is_anchored_by_all_shared_examples() -> None:
    own = draw_features(8, 2)
    data = datasets.expert_data("new", own, own, draw_features(20), list(DOMAINS))
    assert len(data.anchors) == 20


def test_copies_are_distorted_anew_and_splits_are_concatenated() -> None:
    images = draw_features(3)
    split = Split(torch.full((3, 28, 28), 200, dtype=torch.uint8), images.labels, images.domains)
    first, second = (datasets.distorted_copy(split, 0, number) for number in (0, 1))
    assert first.inputs.dtype == torch.uint8
    assert not torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.inputs, datasets.distorted_copy(split, 0, 0).inputs)
    both = datasets.concatenate([first, second])
    assert torch.equal(both.inputs[3:], second.inputs)
    assert len(both) == 6
