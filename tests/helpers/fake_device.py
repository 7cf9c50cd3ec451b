"""A device that does not exist: tensors that are moved to `cuda` stay where they are but count as moved.

Inside `FakeDevice` every torch function is checked: one that gets tensors of both devices raises an error, as on a real
machine, except where torch itself allows it (indices and copies from the CPU, and tensors of one value). What is
computed is the same as on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

CUDA = torch.device("cuda")
MIXING = {
    "__getitem__",
    "__setitem__",
    "copy_",
    "to",
    "_has_compatible_shallow_copy_type",
}  # may get tensors of both devices


class FakeDevice(TorchFunctionMode):
    """Tracks where tensors would be.

    Attributes
    ----------
    moved
        Number of matrix products that would run on the device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moved = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        owner = getattr(getattr(func, "__self__", None), "__name__", "")  # of a property, such as `device`
        if name == "__get__" and owner == "device":
            return CUDA if is_moved(args[0]) else func(*args, **kwargs)
        if name == "__set__" and owner == "data":
            result = func(*args, **kwargs)
            mark(args[0], is_moved(args[1]))
            return result
        before = [one for one in tensors_in((args, kwargs)) if one.ndim > 0 or is_moved(one)]
        places = {is_moved(one) for one in before}
        if len(places) > 1 and name not in MIXING:
            shapes = [(tuple(one.shape), "cuda" if is_moved(one) else "cpu") for one in before]
            raise AssertionError(f"{name} gets tensors of two devices: {shapes}")
        target = any(is_moved(one) for one in before)
        if name == "to" or "device" in kwargs:
            asked = [one for one in (*args, *kwargs.values()) if is_device(one)]
            target = torch.device(asked[0]).type == "cuda" if asked else target
            args = tuple("cpu" if is_device(one) else one for one in args)
            kwargs = {key: "cpu" if is_device(one) else one for key, one in kwargs.items()}
            result = func(*args, **kwargs)
            if name == "to" and result is args[0] and target != is_moved(result):
                result = result.view_as(result)  # the original stays where it is
            return mark(result, target)
        if name == "cpu":
            return mark(args[0].view_as(args[0]), False) if is_moved(args[0]) else args[0]
        if name == "numpy" and target:
            raise AssertionError("a tensor on the device has no array")
        if name in ("getitem", "__getitem__"):
            target = is_moved(args[0])
            if not target and any(is_moved(one) for one in tensors_in(args[1:])):
                raise AssertionError("a tensor on the CPU cannot be indexed by one on the device")
        if name in ("copy_", "__setitem__"):
            target = is_moved(args[0])
        self.moved += target and name in ("baddbmm", "linear", "matmul", "__matmul__", "einsum")
        result = func(*args, **kwargs)
        for one in tensors_in(result):
            mark(one, target)
        return result


def is_device(value: Any) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and value in ("cpu", "cuda"))


def is_moved(tensor: Any) -> bool:
    with torch._C.DisableTorchFunction():
        return bool(getattr(tensor, "_on_fake_device", False))


def mark(tensor: Any, moved: bool) -> Any:
    tensor._on_fake_device = moved
    return tensor


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists and dicts."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        yield from tensors_in(list(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors_in(value)
