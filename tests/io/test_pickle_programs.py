"""Programs of `.pt` files that ask for more memory than they have bytes are refused before anything is called."""

from __future__ import annotations

import pickle
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._utils import _rebuild_device_tensor_from_cpu_tensor

from redx.errors import RedxError
from redx.io import tensor_files
from redx.io.tensor_files import check_program
from redx.runs.inspection import inspect_path


class Call:
    """A value whose pickle calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


def test_reserved_bytes_are_refused_before_they_are_reserved(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2), "b": Call(bytearray, 2**60)}, tmp_path / "x.pt")
    with pytest.raises(RedxError, match=r"contains more than a list of tensors \(calls bytearray\); save only"):
        inspect_path(tmp_path / "x.pt")


@pytest.mark.parametrize("function", [Counter, set, torch.Size, OrderedDict, torch.Tensor])
def test_copies_of_one_list_are_counted(function: Any) -> None:
    shared: list[Any] = []
    program = pickle.dumps([Call(function, shared) for _ in range(5)], 2)
    check_program(program, max_copies=5)
    with pytest.raises(ValueError, match="again and again"):
        check_program(program, max_copies=4)


def test_functions_that_convert_tensors_are_refused() -> None:
    program = pickle.dumps(_rebuild_device_tensor_from_cpu_tensor, 2)
    with pytest.raises(ValueError, match="calls _rebuild_device_tensor_from_cpu_tensor"):
        check_program(program)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint16])
def test_many_tensors_and_the_state_of_training_are_read(tmp_path: Path, dtype: torch.dtype) -> None:
    linear = torch.nn.Linear(3, 2)
    optimiser = torch.optim.Adam(linear.parameters())
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [3, 4])
    one = torch.ones(3, dtype=dtype)
    state = OrderedDict({f"same.{number}": one.view(3) for number in range(30)})
    saved = {"model": state | linear.state_dict(), "scheduler": schedule.state_dict(), "epoch": 3}
    saved |= {f"other.{number}": torch.ones(3, dtype=dtype) for number in range(30)}
    torch.save(saved | {"modules": [OrderedDict() for _ in range(30)]}, tmp_path / "x.pt")
    found = inspect_path(tmp_path / "x.pt")
    assert len(found.entries) == 62
    assert found.about["left out"] == ["scheduler"]


@pytest.mark.parametrize("shared", ["x" * 1000, list(range(300)), 10**500, {"k" * 1000: 1}], ids=type)
def test_a_value_that_is_there_many_times_is_counted_as_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: Any
) -> None:
    torch.save({"a": torch.ones(2), "b": [shared] * 20}, tmp_path / "x.pt")
    assert inspect_path(tmp_path / "x.pt").about == {"b": [shared] * 20}
    monkeypatch.setattr(tensor_files, "PLAIN_BYTES", 10_000)
    with pytest.raises(RedxError, match="contains far more than tensors; save only its state_dict"):
        inspect_path(tmp_path / "x.pt")
