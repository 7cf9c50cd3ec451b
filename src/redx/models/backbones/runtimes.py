"""What runs the frozen part of a language model: torch, torch with linear layers in integers, or ONNX Runtime.

Every runtime is a function from tokens (N, T) to the states of the blocks that are read, (N, T, D·B). Graphs for ONNX
Runtime are made from the torch model when it is loaded, and compared with it on texts of other lengths.
"""

from __future__ import annotations

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
from redx.models.backbones.int8 import quantise

Runtime = Literal["torch", "int8", "onnx"]
MARKS = {"int8": "int8-by-token"}  # names in the cache that differ: before, int8 was what ONNX Runtime computes
States = Callable[[Tensor], Tensor]
PACKAGES = ("onnx", "onnxruntime")
PROBES = ((2, 7), (1, 3), (3, 11))  # sizes of batches: the first makes the graph, all of them check it
TOLERANCE = 1e-3  # of states in float32, relative to the largest: other kernels round otherwise, no more


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
