"""What is wrong with a backbone, labels, files or a plugin is said in one sentence, and nothing changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import redx
from helpers.own_encoder import LABELS, Examples, composed_model, draw_images, own_encoder
from redx import registry
from redx.composition.rules import RULES
from redx.errors import RedxError


@pytest.fixture(scope="module")
def test() -> Examples:
    return draw_images(60, 4)


def refused(call: Callable[[], Any]) -> str:
    """Return the message, which is one sentence with one piece of advice."""
    with pytest.raises(RedxError) as found:
        call()
    message = str(found.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert "; " in message
    return message


def flat(x: Tensor) -> Tensor:
    return x.flatten(1)


def fail(x: Tensor) -> Tensor:
    raise ValueError("no such image.\nSee the manual.")


@pytest.mark.parametrize(
    ("backbone", "words"),
    [
        (lambda x: x, "of shape (60, 1, 4, 4); pool or flatten"),
        (lambda x: x.flatten(), "of shape (960,)"),
        (lambda x: flat(x)[:, :0], "of shape (60, 0)"),
        (lambda x: flat(x).to(torch.complex64), "complex64 of shape (60, 16)"),
        (lambda x: flat(x)[:-1], "59 rows for 60 inputs; it must return one each"),
        (lambda x: torch.cat([flat(x), flat(x)]), "120 rows for 60 inputs"),
        (lambda x: flat(x) / 0, "NaN or infinity"),
        (lambda x: flat(x).masked_fill(flat(x) > 1, torch.nan), "NaN or infinity"),
        (lambda x: [1, 2], "and this one a list; wrap it in a function"),
        (lambda x: {"hidden": flat(x)}, "and this one a dict"),
        (lambda x: None, "and this one a NoneType"),
        (fail, "(ValueError: no such image); give what it reads"),
        (nn.Linear(5, 4), "(RuntimeError: mat1 and mat2"),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 4, device="meta")), "on the device meta"),
    ],
)
def test_backbones_that_return_something_else(backbone: Any, words: str, test: Examples) -> None:
    model = redx.Model(backbone)
    assert words in refused(lambda: model.fit_base(test.x, test.y))
    assert not hasattr(model, "base")


def test_batches_of_different_widths(test: Examples, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redx.models.encoder.ROWS", 40)
    model = redx.Model(lambda x: flat(x)[:, : len(x) // 10 + 1])
    assert "3 and 5 features" in refused(lambda: model.fit_base(test.x, test.y))


def test_a_tensor_goes_to_the_device_of_the_module(test: Examples) -> None:
    seen: list[torch.device] = []

    class Elsewhere(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.device)
            return flat(x) * self.scale

    redx.Model(Elsewhere()).fit_base(test.x, test.y)
    assert set(seen) == {torch.device("cpu")}


@pytest.mark.parametrize("inputs", ["one text", 3, None, {}])
def test_inputs_that_are_no_rows(inputs: Any) -> None:
    assert "one row for each" in refused(lambda: redx.Model(flat).fit_base(inputs, ["a", "b"]))


def test_no_inputs_at_all() -> None:
    assert "at least two classes" in refused(lambda: redx.Model(flat).fit_base([], []))


def test_labels(model: redx.Model, test: Examples) -> None:
    assert "'cat' is given twice" in refused(lambda: redx.Model(flat, ["cat", "dog", "cat"]))
    new = redx.Model(flat, LABELS)
    wrong = ["cat", *test.y[1:-1], "mouse"]
    assert "no class 'mouse'; choose from cat, dog" in refused(lambda: new.fit_base(test.x, wrong))
    assert "60 inputs and 59 labels" in refused(lambda: new.fit_base(test.x, test.y[1:]))
    assert "60 inputs and 2 domains" in refused(lambda: new.fit_base(test.x, test.y, ["a", "b"]))
    assert "at least two classes" in refused(lambda: new.fit_base(test.x, ["cat"] * 60))
    assert "does not know the class 'mouse'" in refused(lambda: model.add_expert("new", test.x, wrong))
    assert "has all classes" in refused(lambda: model.add_expert("new", test.x, test.y))
    assert "60 inputs and 3 labels" in refused(lambda: model.add_expert("new", test.x, test.y[:3]))
    assert "at least 8" in refused(lambda: model.add_expert("new", test.x[:3], ["cat"] * 3))
    assert "already" in refused(lambda: model.add_expert("cars", test.x, test.y))
    assert "cannot be called 'a/b'" in refused(lambda: model.add_expert("a/b", test.x, test.y))
    before = model.control
    assert "no class 'mouse'" in refused(lambda: model.calibrate(test.x, wrong))
    assert "60 inputs and 59 labels" in refused(lambda: model.calibrate(test.x, test.y[1:]))
    assert "true label of every example" in refused(lambda: model.calibrate(test.x))
    assert "cannot be promised with 60" in refused(lambda: model.calibrate(test.x, test.y, risk=0.001))
    assert model.control is before
    assert model.experts.names == ("animals", "cars", "fruit", "tools")


def test_the_wrong_order(test: Examples) -> None:
    model = redx.Model(flat)
    for call in (
        lambda: model(test.x),
        lambda: model.predict(test.x),
        lambda: model.explain(test.x),
        lambda: model.parts(test.x),
        lambda: model.add_expert("a", test.x, test.y),
        lambda: model.remove_expert("a"),
        lambda: model.fit_router(),
        lambda: model.calibrate(test.x, test.y),
        lambda: model.save_pretrained("nowhere"),
        lambda: model.push_to_hub("me/nowhere"),
        lambda: model.head(),
    ):
        assert "no base yet; train one with model.fit_base" in refused(call)
    assert model.classes == ()
    assert not Path("nowhere").exists()


def test_routers(model: redx.Model, test: Examples) -> None:
    assert "no router 'best'; choose one of keys, linear, mlp" in refused(lambda: model.fit_router(test.x, [], "best"))
    assert "'mlp' is trained; give inputs" in refused(lambda: model.fit_router(router="mlp"))
    assert "60 inputs and 1 domains" in refused(lambda: model.fit_router(test.x, ["cars"], "mlp"))
    assert "no expert 'boats'" in refused(lambda: model.fit_router(test.x, ["boats"] * 60, "mlp"))


def test_saved_models_and_their_backbones(model: redx.Model, test: Examples, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    model.save_pretrained(folder)
    load = redx.Model.from_pretrained
    assert "give it as `backbone`" in refused(lambda: load(folder))
    assert "give it as `backbone`" in refused(lambda: load(folder, "minilm-l6"))
    assert "made with another backbone" in refused(lambda: load(folder, own_encoder(seed=1)))
    assert "made with another backbone" in refused(lambda: load(folder, own_encoder(width=13)))
    narrow = load(folder, lambda x: flat(x)[:, :11])
    message = refused(lambda: narrow.predict(test.x))
    assert "returns 11 features an example, and the model was made with 12" in message
    assert "holds no model" in refused(lambda: load(tmp_path / "nothing", own_encoder()))
    assert "is not empty" in refused(lambda: model.save_pretrained(folder))
    features = redx.Model().fit_base(flat(test.x), test.y)
    features.save_pretrained(tmp_path / "features")
    assert "leave out `backbone`" in refused(lambda: load(tmp_path / "features", own_encoder()))


def test_an_expert_of_another_base_is_refused(model: redx.Model, tmp_path: Path) -> None:
    other = composed_model(own_encoder(seed=3), calibrate=False)
    other.experts["cars"].save(tmp_path / "cars")
    removed = model.remove_expert("cars")
    assert "trained on another base" in refused(lambda: model.add_expert(tmp_path / "cars"))
    assert "trained on another base" in refused(lambda: model.add_expert(other.experts["cars"]))
    assert "not there" in refused(lambda: model.add_expert(tmp_path / "none"))
    model.add_expert(removed)


# --- plugins


class Plugin(EntryPoint):
    """An entry point of a package that is not installed."""

    def load(self) -> Any:
        return PLUGINS[self.name]


def break_down() -> None:
    RULES.register("half", lambda parts: parts.gates)
    raise ImportError("no module named 'numby'")


def leave() -> None:
    raise SystemExit(3)


PLUGINS = {
    "broken": break_down,
    "taken": lambda: RULES.register("red", lambda parts: parts.gates),
    "leaving": leave,
    "shouting": lambda: RULES.register("RED!", lambda parts: parts.gates),
    "empty": lambda: RULES.register("none", 3),
}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken", "ImportError: no module named 'numby'"),
        ("taken", "There is a rule 'red' already"),
        ("leaving", "SystemExit: 3"),
        ("shouting", "cannot name a rule"),
        ("empty", "no redx.Rule"),
    ],
)
def test_a_plugin_that_fails_is_named_and_leaves_nothing(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "installed_plugins", lambda path: [Plugin(name, "plugin:join", registry.GROUP)])
    before, red = dict(RULES._entries), RULES["red"]
    for _ in range(2):  # the second time says the same
        message = refused(lambda: list(RULES))
        assert message.startswith(f"The plugin '{name}' does not load (")
        assert words in message
        assert re.search(r"; (mend|uninstall)", message)
    assert RULES["red"] is red  # names of redx itself still work
    assert RULES._entries == before


def test_installed_packages_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[str] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: searches.append(group) or [])
    registry.installed_plugins.cache_clear()
    for _ in range(3):
        list(RULES)
    registry.installed_plugins.cache_clear()
    assert searches == ["redx.plugins"]


def test_a_function_that_gives_other_weights_is_named() -> None:
    parts = redx.Parts(torch.zeros(3, 2), torch.zeros(3, 4, 2), torch.zeros(3, 4))
    RULES.register("odd", lambda parts: parts.base)
    try:
        message = refused(lambda: redx.certify("odd", parts))
        assert "The rule 'odd' gives weights of shape (3, 2), not (3, 4)" in message
    finally:
        RULES.unregister("odd")
