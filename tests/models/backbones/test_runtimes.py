"""Runtimes of the frozen part: ONNX Runtime computes what torch does, and features of different runtimes never mix."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.commands import Ask
from redx.config import EncodingConfig
from redx.errors import RedxError
from redx.models.backbones import runtimes
from redx.models.backbones.language import FrozenLM, Pooling
from redx.models.backbones.runtimes import Int8Linear, Runtime
from redx.models.base import Base
from redx.models.encoder import TextEncoder, build_encoder
from redx.models.fingerprint import fingerprint_base
from redx.tasks import get_preset

TEXTS = ["1+2=?", "What is 37 plus 12?", "a", "2+2=?", "What is 11 plus 12?", "no"]
OTHERS: list[Runtime] = ["onnx", "int8"]

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("kind", ["qwen", "bert"])
@pytest.mark.parametrize("blocks", [(-1,), (3, 1), (0, 2)])
@pytest.mark.parametrize("pooling", ["mean", "tokens"])
def test_onnx_computes_what_torch_does(
    kind: str, blocks: tuple[int, ...], pooling: Pooling, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(kind)
    features = FrozenLM(folder, blocks, pooling, runtime="onnx").read(TEXTS)
    torch.testing.assert_close(features, FrozenLM(folder, blocks, pooling).read(TEXTS), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["qwen", "bert"])
def test_int8_stays_near_torch_and_is_not_torch(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)
    features, plain = (FrozenLM(folder, (-1,), "mean", runtime=name).read(TEXTS) for name in ("int8", "torch"))
    assert not torch.equal(features, plain)
    assert float((features - plain).norm() / plain.norm()) < 0.05


def test_a_layer_in_integers_reads_every_token_by_itself() -> None:
    linear, draw = torch.nn.Linear(40, 24), torch.Generator().manual_seed(0)
    layer, x = Int8Linear(linear), torch.randn(3, 7, 40, generator=draw)
    x[1, 2] = 0
    weight = linear.weight.detach()
    with torch.inference_mode():
        values, exact = layer(x), linear(x)
        alone = torch.stack([layer(token[None])[0] for token in x.flatten(0, 1)]).view_as(values)
    assert torch.equal(values, alone)
    assert torch.equal(values[1, 2], linear.bias.detach())
    steps = x.abs().amax(-1, keepdim=True) / 127, weight.abs().amax(-1) / 127  # a number is off by half a step at most
    allowed = (steps[0] * weight.abs().sum(-1) + steps[1] * x.abs().sum(-1, keepdim=True)) / 2 + 10 * steps[0] * steps[
        1
    ]
    assert ((values - exact).abs() <= allowed + 1e-5).all()


@pytest.mark.parametrize("runtime", OTHERS)
def test_features_of_runtimes_are_cached_apart(bert: Path, runtime: Runtime) -> None:
    plain, other = FrozenLM(bert, (1,), "mean"), FrozenLM(bert, (1,), "mean", runtime=runtime)
    plain.prepare(TEXTS)
    assert plain.cache.folder != other.cache.folder
    assert other.cache.missing(TEXTS) == TEXTS
    other.prepare(TEXTS)
    assert other.cache.missing(TEXTS) == []
    assert other.cache.info["runtime"] == runtimes.MARKS.get(runtime, runtime)


@pytest.mark.parametrize("runtime", OTHERS)
def test_a_killed_encoding_ends_with_the_same_bits(
    bert: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{number} plus {number % 7}" for number in range(40)]
    whole = {
        t: rows
        for batch in FrozenLM(bert, (2,), "mean", batch_tokens=37, runtime=runtime).encode(texts)
        for t, rows in batch
    }
    broken = FrozenLM(bert, (2,), "mean", batch_tokens=37, runtime=runtime)
    states, calls = broken.states, iter(range(5))

    def stop(tokens: torch.Tensor) -> torch.Tensor:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return states(tokens)

    monkeypatch.setattr(broken, "states", stop)
    with pytest.raises(KeyboardInterrupt):
        broken.prepare(texts)
    again = FrozenLM(bert, (2,), "mean", batch_tokens=37, runtime=runtime)
    assert 0 < len(again.cache.missing(texts)) < len(texts)
    again.prepare(texts)
    assert torch.equal(again.read(texts), torch.cat([whole[text] for text in texts]))


def test_a_missing_package_is_named_in_one_sentence(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "onnxruntime" else find(name, *rest)
    )
    with pytest.raises(RedxError, match=r"needs onnxruntime; install with `pip install 'redx\[onnx\]'`"):
        FrozenLM(bert, (1,), "mean", runtime="onnx")
    for runtime in ("torch", "int8"):  # these need none of it
        FrozenLM(bert, (1,), "mean", runtime=runtime).read(["a"])


def test_the_command_line_says_so_too(ask: Ask, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "PACKAGES", ("no_such_package",))
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(f'{{"text": "text {i}", "label": "{i % 2}", "domain": "{i % 3}"}}\n' for i in range(120)))
    words = ("run", "jsonl", "--data", str(file), "--domain", "domain", "--backbone", str(bert), "--runtime", "onnx")
    code, _, err = ask(*words, "--out", str(tmp_path / "run"))
    assert code == 2
    assert "needs no_such_package" in err
    assert "Traceback" not in err


def test_other_precisions_and_devices_are_refused(bert: Path) -> None:
    with pytest.raises(RedxError, match="choose --runtime torch"):
        FrozenLM(bert, (1,), "mean", "float16", runtime="onnx")
    with pytest.raises(RedxError, match="choose --runtime torch"):
        FrozenLM(bert, (1,), "mean", device="cuda", runtime="int8")


def test_a_graph_that_computes_something_else_is_refused(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = runtimes._make_session

    class Wrong:
        def __init__(self, session: Any) -> None:
            self.session = session

        def run(self, *given: Any) -> list[Any]:
            return [1.1 * states for states in self.session.run(*given)]

    monkeypatch.setattr(runtimes, "_make_session", lambda *given: Wrong(make(*given)))
    with pytest.raises(RedxError, match="computes other features"):
        FrozenLM(bert, (1,), "mean", runtime="onnx").read(["a"])


def test_torch_is_the_default_and_leaves_no_trace_in_names(bert: Path) -> None:
    assert EncodingConfig().runtime == "torch"
    cache = FrozenLM(bert, (1,), "mean").cache
    assert "runtime" not in cache.info
    assert cache.folder.name.endswith("float32")


def test_fingerprints_contain_the_runtime_and_stay_as_they_were_for_torch(bert: Path) -> None:
    config = get_preset("jsonl", "quick").model_copy(update={"backbone": str(bert)})
    marks = []
    for runtime in ("torch", *OTHERS):
        encoding = config.encoding.model_copy(update={"runtime": runtime, "blocks": (1,)})
        changed = config.model_copy(update={"encoding": encoding})
        encoder = build_encoder(changed)
        assert isinstance(encoder, TextEncoder)
        width = encoder.frozen.width
        base = Base(encoder, torch.ones(width, 2), torch.zeros(2), torch.zeros(width), torch.ones(width))
        marks.append((encoder.mark, fingerprint_base(base, changed, ("a", "b"), ())["feature settings"]))
    assert len({mark for mark, _ in marks}) == len({settings for _, settings in marks}) == 1 + len(OTHERS)
    before = {"encoding": {**config.encoding.model_dump(exclude={"runtime"}), "blocks": (1,)}}
    before["trunk"] = config.base.trunk.model_dump()
    assert marks[0][1] == hashlib.sha256(repr(before).encode()).hexdigest()[:16]
