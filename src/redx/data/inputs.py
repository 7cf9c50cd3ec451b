"""How a user's inputs become the tensor that an encoder reads, by the kind of input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from redx.data.text import pack_texts
from redx.errors import RedxError
from redx.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

MAX_CHARACTERS = 2000  # of a text that are read
LARGEST_NUMBER = 100  # of the pairs of the toy task
READERS: Registry[Callable[[Any], Any]] = Registry("reader")
READERS.register("sentences", pack_texts)


@READERS.register("text")
def read_texts(inputs: Sequence[Any] | Tensor) -> Tensor:
    """Return texts as bytes, (N, L); only the first 2,000 characters of a text are read."""
    cut = [text[:MAX_CHARACTERS].strip() if isinstance(text, str) else text for text in inputs]
    return pack_texts(inputs if isinstance(inputs, str) else cut)


@READERS.register("features")
def read_features(inputs: Sequence[Any] | Tensor) -> Tensor:
    """Return features as float32, (N, D)."""
    import torch  # listing the tasks must not

    try:
        x = torch.as_tensor(inputs, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RedxError("This model reads features; give an array (N, D) of numbers.") from error
    if x.ndim != 2 or not bool(x.isfinite().all()):
        raise RedxError(f"This model reads finite features, (N, D), not an input of shape {tuple(x.shape)}.")
    return x


@READERS.register("images")
def read_images(inputs: Sequence[Any] | Tensor) -> Tensor:
    """Return grey images of 28 × 28 with values 0 to 255: (N, 28, 28)."""
    import torch  # listing the tasks must not

    try:
        images = torch.as_tensor(inputs)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RedxError("MNIST reads images of 28 × 28 with values 0 to 255; give an array (N, 28, 28).") from error
    if images.ndim != 3 or tuple(images.shape[1:]) != (28, 28):
        raise RedxError(f"MNIST reads images of shape (N, 28, 28), not {tuple(images.shape)}; reshape them.")
    return images


@READERS.register("pairs")
def read_pairs(inputs: Sequence[Any] | Tensor) -> Tensor:
    """Return pairs of numbers from 1 to 100 as the network reads them: (N, 2)."""
    import torch  # listing the tasks must not

    try:
        numbers = torch.as_tensor(inputs, dtype=torch.float32)
    except (TypeError, ValueError) as error:
        raise RedxError("The toy reads pairs of numbers such as [[12, 5], [70, 81]]; give it some.") from error
    if numbers.ndim != 2 or numbers.shape[1] != 2:
        raise RedxError(f"The toy reads pairs of numbers, not an input of shape {tuple(numbers.shape)}; give (N, 2).")
    return numbers / LARGEST_NUMBER
