"""What runs the frozen part of a language model: torch, torch with linear layers in integers, or ONNX Runtime.

Every runtime is a function from tokens (N, T) to the states of the blocks that are read, (N, T, D·B). Graphs for ONNX
Runtime are made from the torch model when it is loaded, and compared with it on texts of other lengths.
"""

from __future__ import annotations

import copy
import importlib.util
import tempfile
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from redx.errors import RedxError

Runtime = Literal["torch", "int8", "onnx"]
MARKS = {"int8": "int8-by-token"}  # names in the cache that differ: before, int8 was what ONNX Runtime computes
States = Callable[[Tensor], Tensor]
PACKAGES = ("onnx", "onnxruntime")
PROBES = ((2, 7), (1, 3), (3, 11))  # sizes of batches: the first makes the graph, all of them check it
TOLERANCE = 1e-3  # of states in float32, relative to the largest: other kernels round otherwise, no more
LEVELS = 127  # largest integer
TINY = 1e-30  # rows of zeros are divided by this


class _BlockStates(nn.Module):
    """A language model that ends with the highest block that is read, as a module from tokens to states."""

    def __init__(self, model: nn.Module, blocks: tuple[int, ...]) -> None:
        super().__init__()
        self.model, self.blocks, self.top = model, blocks, max(1, *blocks)

    def forward(self, tokens: Tensor) -> Tensor:  # (N, T) -> (N, T, D·B)
        # Nothing is padded. Without a mask, transformers looks for several texts in a row, which cannot be exported.
        mask = {"attention_mask": torch.ones_like(tokens)} if torch.onnx.is_in_onnx_export() else {}
        if set(self.blocks) == {self.top}:  # then the states of the blocks below are not kept
            states = {self.top: self.model(input_ids=tokens, **mask).last_hidden_state}
        else:
            states = self.model(input_ids=tokens, output_hidden_states=True, **mask).hidden_states
        return torch.cat([states[block] for block in self.blocks], dim=-1)


def check_runtime(runtime: Runtime, precision: str, device: str) -> None:
    """Raise `RedxError` where a runtime cannot run here, or not with this precision on this device.

    Parameters
    ----------
    runtime
        `torch`, `int8` or `onnx`.
    precision
        Precision of the weights.
    device
        Where the model is to run.
    """
    if runtime == "torch":
        return
    if precision != "float32" or device != "cpu":
        raise RedxError(
            f"The runtime {runtime} runs in float32 on the CPU, not {precision} on {device}; choose --runtime torch."
        )
    if runtime == "onnx" and (missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]):
        raise RedxError(
            f"The runtime {runtime} needs {' and '.join(missing)}; install with `pip install 'redx[onnx]'`, "
            "or choose --runtime torch."
        )


def build_states(model: nn.Module, blocks: tuple[int, ...], runtime: Runtime, device: str) -> States:
    """Return the function from tokens to the states of blocks.

    Parameters
    ----------
    model
        The blocks of a language model that are needed, as transformers loads them.
    blocks
        The blocks that are read; 0 is the embeddings.
    runtime
        What runs the model.
    device
        Where torch runs it.

    Returns
    -------
    callable
        Takes tokens without padding, (N, T), and returns states of shape (N, T, D·B) on the CPU.
    """
    module = _BlockStates(quantise(model) if runtime == "int8" else model, blocks).eval()

    def run_torch(tokens: Tensor) -> Tensor:
        with torch.inference_mode():
            return module(tokens.to(device)).float().cpu()

    if runtime != "onnx":
        return run_torch
    session = _make_session(module)

    def run_onnx(tokens: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"tokens": tokens.numpy()})[0])

    _check_graph(module, run_torch, run_onnx)
    return run_onnx


def _make_session(module: _BlockStates) -> Any:
    """Return a session of ONNX Runtime for a model, with as many threads as torch."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "model.onnx")
        try:
            _export(module, file)
            return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # exporter and runtime raise errors of many types for operations they do not know
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise RedxError(f"ONNX Runtime cannot run this model ({reason}); choose --runtime torch.") from error


def _export(module: _BlockStates, file: Path) -> None:
    axes = {"tokens": {0: "texts", 1: "length"}, "states": {0: "texts", 1: "length"}}
    with warnings.catch_warnings(), torch.inference_mode(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")  # the exporter warns of itself and of every constant
        torch.onnx.export(
            module,
            (_probe(module, *PROBES[0]),),
            str(file),
            input_names=["tokens"],
            output_names=["states"],
            dynamic_axes=axes,
            dynamo=False,
        )


def _probe(module: _BlockStates, texts: int, length: int) -> Tensor:
    """Return tokens that every model has, (N, T)."""
    words = min(100, int(getattr(module.model.config, "vocab_size", 100)))  # type: ignore[union-attr]
    return torch.arange(texts * length).view(texts, length) % words


def _check_graph(module: _BlockStates, plain: States, graph: States) -> None:
    """Raise `RedxError` where a graph computes something else than its model, as for other sizes than its own."""
    for size in PROBES:
        tokens = _probe(module, *size)
        expected, states = plain(tokens), graph(tokens)
        if states.shape != expected.shape or not float((states - expected).abs().max()) <= TOLERANCE * float(
            expected.abs().max()
        ):
            raise RedxError("ONNX Runtime computes other features of this model than torch; choose --runtime torch.")


# --- linear layers in integers of eight bits: one scale a column of the weights, and one a token of what they read
#
# A number x is kept as `s · q` with an integer q from -127 to 127. Sums of integers are exact, so what a layer computes
# for one token does not depend on the other tokens of a batch.


def to_integers(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return numbers, (N, D), as integers with the scale of every row, (N, 1).

    Examples
    --------
    >>> to_integers(torch.tensor([[127.0, 1.4]]))
    (tensor([[127,   1]], dtype=torch.int8), tensor([[1.]]))
    """
    scale = x.abs().amax(-1, keepdim=True).clamp_min_(TINY) / LEVELS
    return (x / scale).round_().to(torch.int8), scale


class Int8Linear(nn.Module):
    """A linear layer whose weights and inputs are integers of eight bits.

    Parameters
    ----------
    linear
        The layer in float32.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight, scale = to_integers(linear.weight.detach().float())
        self.weight, self.scale = weight.T, scale.T.contiguous()  # (D, C) and (1, C)
        self.bias = torch.zeros(self.out_features) if linear.bias is None else linear.bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:  # (..., D) -> (..., C)
        rows, scale = to_integers(x.reshape(-1, self.in_features))
        total = torch._int_mm(rows, self.weight).float().mul_(scale)  # pyright: ignore[reportPrivateImportUsage]
        return torch.addcmul(self.bias, total, self.scale).view(*x.shape[:-1], self.out_features)


def quantise(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose linear layers compute in integers; the rest stays in float32."""
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, Int8Linear(child))
    return model.eval()
