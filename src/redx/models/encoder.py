"""Encoders: from inputs to the features h that the classifier and the experts read.

An encoder has a frozen part, whose outputs are computed once and cached, and a part that is trained with the base.
Image networks have no frozen part, texts go through a frozen language model and a trunk, features through a trunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from redx.config import ModelConfig, TrunkConfig
from redx.data.text import unpack_texts
from redx.errors import RedxError
from redx.io.hardware import usable_device
from redx.io.hashing import hash_tensors
from redx.models import trunks
from redx.models.backbones import hub
from redx.models.backbones.base import Encoder, IdentityEncoder
from redx.models.backbones.image import ConvEncoder, SmallConvEncoder
from redx.models.backbones.language import FrozenLM
from redx.models.fitting import fits
from redx.registry import Registry

FEATURES = "features"  # the name of the backbone, and of the task, whose inputs are features already
FUNCTION = "function"  # the mark of a backbone that is no module
ROWS = 1024  # inputs that go through a user's backbone at once
Trunk = trunks.MLPTrunk | trunks.TokenSum | trunks.TopBlocks


class TextEncoder(Encoder):
    """Texts as bytes, (N, L), to features, (N, E): a frozen language model and a trained trunk.

    Only the trunk has weights that are saved with the base.
    """

    reads_text = True

    def __init__(self, frozen: FrozenLM, trunk: Trunk) -> None:
        super().__init__()
        self.frozen, self.trunk = frozen, trunk

    @property
    def width(self) -> int:
        return self.trunk.width

    @property
    def abstention_features(self) -> slice:
        """The last block alone where several are read as they are: it separates unknown inputs best."""
        as_they_are = isinstance(self.trunk, trunks.MLPTrunk) and not len(self.trunk.layers)
        several = len(self.frozen.blocks) > 1 and self.frozen.pooling == "mean"
        return slice(-self.frozen.hidden_size, None) if as_they_are and several else slice(None)

    @property
    def mark(self) -> str:
        return self.frozen.cache.folder.name

    @property
    def value_trunk(self) -> trunks.TokenSum | None:
        return self.trunk if isinstance(self.trunk, trunks.TokenSum) else None

    def prepare(self, inputs: Iterable[Tensor]) -> None:
        self.frozen.prepare(list(dict.fromkeys(text for batch in inputs for text in unpack_texts(batch))))

    def read(self, inputs: Tensor) -> Tensor:
        """Return what the frozen model gives for texts: (N, E), or (N, T, E) by token."""
        return self.frozen.read(unpack_texts(inputs.cpu())).to(inputs.device)

    def fit(self, features: Tensor) -> None:
        self.trunk.fit(features)

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk(x)


class FeatureEncoder(Encoder):
    """Features that the user brings, (N, F), through a trained trunk; there is no frozen part."""

    mark = FEATURES

    def __init__(self, trunk: FeatureTrunk | trunks.MLPTrunk) -> None:
        super().__init__()
        self.trunk = trunk

    @property
    def width(self) -> int:
        return self.trunk.width

    def fit(self, features: Tensor) -> None:
        self.trunk.fit(features)

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk(x)


class ModuleEncoder(Encoder):
    """Any frozen module or function from a batch to features, (N, F), and a trained trunk on them.

    Parameters
    ----------
    frozen
        The module; it is put into evaluation mode, is never trained, and is not saved with the base.
    trunk
        The trunk.
    """

    def __init__(self, frozen: Callable[[Any], Any], trunk: FeatureTrunk) -> None:
        super().__init__()
        self.trunk = trunk
        self._frozen = (frozen,)  # in a tuple, so that it is no submodule: its weights are not ours to save

    @property
    def width(self) -> int:
        return self.trunk.width

    @property
    def mark(self) -> str:
        return mark_backbone(self._frozen[0])

    def read(self, inputs: Any) -> Tensor:
        """Return the features of inputs, (N, F), on the CPU."""
        return read_backbone(self._frozen[0], inputs, self.trunk.inputs)

    def fit(self, features: Tensor) -> None:
        self.trunk.fit(features)

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk(x)


def mark_backbone(frozen: Callable[[Any], Any]) -> str:
    """Return a name for what a user's backbone computes: the hash of a module; of a function nothing is known."""
    if not isinstance(frozen, nn.Module):
        return FUNCTION
    return hash_tensors(dict(frozen.state_dict()), type(frozen).__qualname__)


def read_backbone(frozen: Callable[[Any], Any], inputs: Any, width: int | None = None) -> Tensor:
    """Return the features of inputs, (N, F), on the CPU; a few of them go through the backbone at once.

    Parameters
    ----------
    frozen
        The user's backbone; a module is put into evaluation mode.
    inputs
        What it reads: a list, an array, a tensor, or a mapping of such.
    width
        The number F that is expected; None for any.
    """
    if isinstance(frozen, nn.Module):
        frozen.eval().requires_grad_(False)
    features = [run_backbone(frozen, batch) for batch in _batches(inputs)]
    widths = {one.shape[1] for one in features} - {width}
    if not features and width is None:
        raise RedxError("There are no inputs; give at least one, for the backbone to read.")
    if width is not None and widths:
        raise RedxError(
            f"The backbone returns {_join(widths)} features an example, and the model was made with {width}; give the "
            "backbone that it was made with."
        )
    if len(widths) > 1:
        raise RedxError(f"The backbone returns {_join(widths)} features for different batches; return one width.")
    return torch.cat(features) if features else torch.empty(0, width or 0)


def run_backbone(frozen: Callable[[Any], Any], inputs: Any) -> Tensor:
    """Return what a user's backbone gives for a batch, (N, F), in single precision on the CPU.

    Raises
    ------
    RedxError
        Where the backbone fails, or returns anything else than one row of finite features for every input.
    """
    first = next(iter(frozen.parameters()), None) if isinstance(frozen, nn.Module) else None
    if first is not None and first.is_meta:
        raise RedxError(
            "The backbone is on the device meta, so it has no weights; load them, or move it with to_empty."
        )
    try:
        with torch.no_grad():
            features = frozen(inputs if first is None else _moved(inputs, first.device))
    except RedxError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise RedxError(
            f"The backbone fails on a batch ({type(error).__name__}: {lines[0].rstrip('.'):.200}); give what it reads, "
            "on its own device."
        ) from error
    if isinstance(features, np.ndarray) and features.dtype.kind in "iuf":
        features = torch.from_numpy(features)
    if not isinstance(features, Tensor):
        raise RedxError(
            f"A backbone returns a tensor of features, (N, D), and this one a {type(features).__name__}; wrap it in a "
            "function that returns the features alone."
        )
    if features.ndim != 2 or not features.shape[1] or features.layout != torch.strided or features.is_complex():
        kind = str(features.dtype).removeprefix("torch.")
        raise RedxError(
            f"A backbone returns features of shape (N, D), and this one {kind} of shape {tuple(features.shape)}; pool "
            "or flatten what it gives for an example."
        )
    if len(features) != (rows := count_rows(inputs)):
        raise RedxError(f"The backbone returns {len(features)} rows for {rows} inputs; it must return one each.")
    features = features.float().cpu()
    if not bool(features.isfinite().all()):
        raise RedxError("The backbone returns NaN or infinity for this batch; check its weights and the inputs.")
    return features


def _moved(inputs: Any, device: torch.device) -> Any:
    """Return inputs whose arrays are tensors, and whose tensors are on a device."""
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "biuf":
        inputs = torch.from_numpy(inputs.astype(np.float32) if inputs.dtype == np.float64 else inputs)
    if isinstance(inputs, Mapping):
        return {name: _moved(value, device) for name, value in inputs.items()}
    return inputs.to(device) if isinstance(inputs, Tensor) else inputs


def count_rows(inputs: Any) -> int:
    """Return the number of inputs, where they are a sequence, a tensor, or a mapping of such as tokenizers return."""
    try:
        if not isinstance(inputs, str | bytes):
            return len(next(iter(inputs.values()))) if isinstance(inputs, Mapping) else len(inputs)
    except (TypeError, StopIteration):
        pass
    kind = type(inputs).__name__
    raise RedxError(f"Inputs are a list, an array or a tensor with one row for each, not one {kind}; give such.")


def _batches(inputs: Any) -> Iterator[Any]:
    """Yield a few inputs at a time."""
    for start in range(0, count_rows(inputs), ROWS):
        rows = slice(start, start + ROWS)
        yield {name: one[rows] for name, one in inputs.items()} if isinstance(inputs, Mapping) else inputs[rows]


def _join(numbers: Iterable[int]) -> str:
    return " and ".join(map(str, sorted(numbers)))


class FeatureTrunk(nn.Module):
    """A trunk whose number of input features is taken from the data, or from the file of a trained base."""

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        self.config = config
        self.register_load_state_dict_pre_hook(self._build_for_state)

    @property
    def width(self) -> int:
        return self.inner.width

    @property
    def inputs(self) -> int | None:
        """The number of features F that it reads; None before it is fitted."""
        return len(self.inner.mean) if hasattr(self, "inner") else None

    def fit(self, x: Tensor) -> None:  # (N, F)
        """Build the trunk for the features of the shared subset, and standardise by them."""
        self.inner = build_feature_trunk(x.shape[1], self.config)
        span = x.amax(0) - x.amin(0)
        # A feature that hardly varies here may vary elsewhere, so it stays small; a constant one is not read at all.
        scale = x.std(0).maximum(0.1 * span)
        self.inner.mean.copy_(x.mean(0))
        self.inner.scale.copy_(torch.where(span > 0, scale, torch.inf))

    def forward(self, x: Tensor) -> Tensor:  # (N, F) -> (N, D) or (N, D + F)
        if x.shape[1:] != self.inner.mean.shape:
            count = len(self.inner.mean)
            raise RedxError(f"This model reads {count} features an example; give (N, {count}), not {tuple(x.shape)}.")
        return self.inner(x)

    def _build_for_state(self, _: nn.Module, state: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        if f"{prefix}inner.mean" in state:
            inputs, start = len(state[f"{prefix}inner.mean"]), f"{prefix}inner."
            given = {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}
            if not fits(lambda: build_feature_trunk(inputs, self.config), given):
                raise RuntimeError("the trunk does not fit its settings")
            self.inner = build_feature_trunk(inputs, self.config)


def build_feature_trunk(inputs: int, config: TrunkConfig) -> trunks.MLPTrunk:
    """Return an untrained trunk on this many features; a `linear` one only standardises them."""
    if config.shape == "linear":
        return trunks.MLPTrunk(inputs, inputs, 0, append_features=False)
    return trunks.MLPTrunk(inputs, config.hidden, config.depth, config.append_features)


def build_encoder(config: ModelConfig) -> Encoder:
    """Return the untrained encoder that the settings of a model ask for.

    Parameters
    ----------
    config
        Settings of the model: its backbone, its trunk and what is read from a language model.

    Returns
    -------
    Encoder
        A registered backbone, or else a trunk on the frozen language model of this name or folder.
    """
    name, trunk = config.backbone, config.base.trunk
    if name not in hub.EMBEDDED and "/" not in name and name in BACKBONES:
        built = BACKBONES[name](config)
        return built if isinstance(built, Encoder) else ModuleEncoder(built, FeatureTrunk(trunk))
    if trunk.shape == "none":
        raise RedxError(f"There is no backbone {name!r} without a trunk; choose one of {', '.join(BACKBONES)}.")
    if config.base.teach == "value" and trunk.shape != "sum":
        raise RedxError(f"A trunk of shape {trunk.shape} learns classes, not values; choose --trunk sum.")
    return _build_text_encoder(config, hub.model_folder(name))


def _build_text_encoder(config: ModelConfig, folder: Path) -> TextEncoder:
    trunk, encoding = config.base.trunk, config.encoding
    by_blocks = trunk.shape == "blocks"
    if not by_blocks and (trunk.shape == "sum") != (encoding.pooling == "tokens"):
        raise RedxError("A trunk of shape sum reads single tokens, and others do not; choose --pooling tokens or mean.")
    blocks, pooling = ((-1 - trunk.blocks,), "tokens") if by_blocks else (encoding.blocks, encoding.pooling)
    frozen = FrozenLM(
        folder,
        blocks,
        pooling,
        encoding.precision,
        usable_device(config.device),
        encoding.tokens,
        runtime=encoding.runtime,
    )
    if by_blocks:
        return TextEncoder(frozen, trunks.TopBlocks(folder, frozen.config, trunk.blocks))
    if trunk.shape == "sum":
        return TextEncoder(frozen, trunks.TokenSum(frozen.width, trunk.hidden, trunk.depth, trunk.append_features))
    return TextEncoder(frozen, build_feature_trunk(frozen.width, trunk))


BACKBONES: Registry[Callable[[ModelConfig], nn.Module]] = Registry("backbone")  # each builds an untrained encoder


def _without_trunk(build: Callable[[], Encoder]) -> Callable[[ModelConfig], Encoder]:
    def checked(config: ModelConfig) -> Encoder:
        if config.base.trunk.shape != "none":
            raise RedxError(f"The backbone {config.backbone} reads no text and has no trunk; {hub.CHOICE}.")
        return build()

    return checked


BACKBONES.register("cnn", _without_trunk(ConvEncoder))
BACKBONES.register("cnn-small", _without_trunk(SmallConvEncoder))
BACKBONES.register("none", _without_trunk(IdentityEncoder))


@BACKBONES.register(FEATURES)
def _build_feature_encoder(config: ModelConfig) -> FeatureEncoder:
    if config.base.trunk.shape not in ("linear", "mlp"):
        raise RedxError(f"A trunk of shape {config.base.trunk.shape} reads no features; choose --trunk linear or mlp.")
    return FeatureEncoder(FeatureTrunk(config.base.trunk))
