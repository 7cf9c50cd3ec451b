"""What an owner's statistics do to a run: an honest one is taken, a wrong one is refused, and leaving is forgetting."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file

import redx
from helpers.commands import Ask, refused, succeeded
from helpers.own_data import draw_clouds, write_arrays
from helpers.runs import contents
from redx.io.files import write_json
from redx.io.reading import read_json
from redx.models.expert import Expert
from redx.models.ridge_head import DESCRIPTION
from redx.models.ridge_head import FILE as HEAD
from redx.models.statistics import FILE, Statistics, collect, read_statistics
from redx.runs import admission, editing
from redx.runs.folder import load_seed, read_config
from redx.runs.kit import read_kit, write_kit
from redx.seeding import generator
from redx.training.datasets import concatenate
from redx.training.features import embed_split

Arrays = dict[str, Any]
POISONS: dict[str, Callable[[Arrays], Arrays]] = {
    "swapped": lambda own: own | {"y": numpy.where(own["y"] == "high", "low", "high")},
    "one class": lambda own: own | {"y": numpy.full_like(own["y"], "low")},
}


WITHOUT_MANIFEST = shutil.ignore_patterns("manifest.json")  # as from an owner who changed files on purpose


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with choice examples enough to see what an owner does."""
    home = tmp_path_factory.mktemp("target")
    file = write_arrays(home / "clouds.npz", **draw_clouds(1600))
    epochs = {"base": 3, "experts": 1, "router": 1}
    more = {"study": "none", "epochs": epochs, "statistics": {"use": True, "size": 100}}
    return redx.run("features", "quick", out=home / "run", file=str(file), **more).folder


@pytest.fixture
def run(target: Path, tmp_path: Path) -> Path:
    """A copy of that run, which a test may change."""
    return Path(shutil.copytree(target, tmp_path / "run"))


def train(run: Path, name: str, folder: Path, change: Callable[[Arrays], Arrays] = dict, **more: Any) -> Path:
    """Train the expert of a new owner, whose examples were changed; return its folder."""
    arrays = change(draw_clouds(1200, seed=9))
    data = write_arrays(folder / f"{name}.npz", x=arrays["x"], y=arrays["y"])
    editing.train_expert(run, name, data, folder / name, **more)
    return folder / name


def sentence(error: str) -> str:
    """Return an error that is one sentence, without line breaks."""
    text = " ".join(error.split())
    assert error.count("\n") == 1
    assert len(text.rstrip(".").split(". ")) == 1
    return text


# --- who may change the base


@pytest.mark.parametrize("poison", POISONS)
def test_an_owner_who_makes_the_base_worse_is_refused(run: Path, tmp_path: Path, ask: Ask, poison: str) -> None:
    bad, before = train(run, "bad", tmp_path, POISONS[poison]), contents(run)
    for words in (("add", run), ("replace", run, "0")):
        code, out, error = ask("experts", *words, bad)
        assert (code, out, contents(run)) == (1, "", before)
        assert "The statistics of 'bad' make the base worse" in sentence(error)
        assert all(word in error for word in ("held-out examples", "--no-statistics", "--force", "p = "))
    code, out, error = ask("experts", "diff", run, "--add", bad)
    assert code == 0
    assert "warning: the statistics of bad make the base worse" in error
    assert "(worse)" in out
    change = json.loads(ask("experts", "diff", run, "--add", bad, "--json")[1])
    assert change["owners"]["bad"]["harmful"]
    assert change["base"]["after"] < change["base"]["before"]
    assert contents(run) == before
    code, out, error = ask("experts", "add", run, bad, "--force", "--json")
    assert code == 0
    assert "warning: taken by force: The statistics of 'bad' make the base worse" in error
    assert json.loads(out)["change"]["owners"]["bad"]["harmful"]
    assert "bad" in redx.load(run).experts
    code, out, error = ask("experts", "diff", run, "--remove", "bad")
    assert "warning: the statistics of bad make the base worse; the base is better without them" in error
    assert "(worse)" in out
    removed = json.loads(succeeded(ask("experts", "remove", run, "bad", "--json")))["change"]
    assert removed["owners"]["bad"]["harmful"]
    assert removed["base"]["after"] > removed["base"]["before"]


def test_without_statistics_a_bad_owner_leaves_the_base_as_it_is(run: Path, tmp_path: Path, ask: Ask) -> None:
    bad, before = train(run, "bad", tmp_path, POISONS["swapped"], statistics=False), contents(run)
    out = json.loads(succeeded(ask("experts", "add", run, bad, "--json")))
    assert out["change"]["owners"] == {}
    assert out["change"]["base"]["before"] == out["change"]["base"]["after"]
    assert contents(run)[f"seed-0/{HEAD}"] == before[f"seed-0/{HEAD}"]


def test_nothing_but_the_comparison_refuses_it(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "check_contribution", lambda *_: None)
    monkeypatch.setattr(editing, "check_contribution", lambda *_: None)
    monkeypatch.setattr(editing, "check_harm", lambda *_: None)
    editing.add_expert(run, train(run, "bad", tmp_path, POISONS["swapped"]))


def test_honest_owners_are_taken(run: Path, tmp_path: Path, ask: Ask) -> None:
    good = train(run, "good", tmp_path)
    out = json.loads(succeeded(ask("experts", "add", run, good, "--json")))
    owner = out["change"]["owners"]["good"]
    assert not owner["harmful"]
    assert owner["examples"] >= 20
    assert owner["within"] >= owner["without"] - 0.05
    succeeded(ask("experts", "remove", run, "2"))
    succeeded(ask("experts", "add", run, run / "seed-0" / "removed" / "2"))


# --- what is shown


def test_every_change_shows_base_red_and_any_router_by_domain(run: Path, tmp_path: Path, ask: Ask) -> None:
    good, names = train(run, "good", tmp_path), redx.load(run).experts.names
    looked = json.loads(succeeded(ask("experts", "diff", run, "--remove", "3", "--json")))
    done = json.loads(succeeded(ask("experts", "remove", run, "3", "--json")))["change"]
    for key in ("count", "base", "worst", "domains"):
        assert looked[key] == done[key], key
    assert set(done["domains"]) == set(names)
    assert sum(one["examples"] for one in done["domains"].values()) == done["count"] > 10
    for key, own in (("base", "base"), ("accuracy", None), ("worst", "worst")):
        for side in ("before", "after"):
            shares = [(one[own] if own else one)[side] * one["examples"] for one in done["domains"].values()]
            assert done[key][side] == pytest.approx(sum(shares) / done["count"])
    assert done["worst"]["after"] <= done["accuracy"]["after"]
    for words in (("add", run, good), ("replace", run, "2", run / "seed-0" / "experts" / "2"), ("remove", run, "1")):
        out = succeeded(ask("experts", *words))
        table = [line for line in out.splitlines() if "→" in line]
        assert len(table) == len(names) + 1  # every domain, and all
        assert all(line.count("→") == 3 and len(line) <= 80 for line in table)
        assert "on the test split" in out


# --- an owner who leaves


def test_leaving_is_forgetting(run: Path, tmp_path: Path, ask: Ask) -> None:
    """The base is, bit for bit, that of a model that never knew the owner."""
    seed = run / "seed-0"
    before = {name: (seed / name).read_bytes() for name in (HEAD, DESCRIPTION)}
    succeeded(ask("experts", "add", run, train(run, "late", tmp_path)))
    assert (seed / HEAD).read_bytes() != before[HEAD]
    succeeded(ask("experts", "remove", run, "late"))
    assert {name: (seed / name).read_bytes() for name in before} == before
    succeeded(ask("experts", "remove", run, "1"))
    left = load_seed(seed, read_config(run)).experts
    pool = left.pool
    assert left.head is not None
    assert pool is not None
    pool.forget()
    for folder in (seed / "removed").iterdir():
        shutil.rmtree(folder)
    owners = {expert.name: read_statistics(seed / "experts" / expert.name / FILE) for expert in left}
    marks = {name: own.mark for name, own in reversed(owners.items())}
    assert "1" not in marks
    assert torch.equal(pool.head(marks, owners.__getitem__, left.classes).weight, left.head.weight)


# --- an owner with a kit


def among(rows: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return which rows occur among others, (N,)."""
    return (rows[:, None] - others).abs().amax(-1).amin(1) < 1e-5


def test_owners_with_kits_and_the_shared_examples_sum_to_the_pooled_ridge(run: Path, tmp_path: Path) -> None:
    """Also where a part of an owner's examples is among the shared ones."""
    write_kit(run, tmp_path / "kit.zip")
    kit, arrays = read_kit(tmp_path / "kit.zip"), draw_clouds(1600)
    model = load_seed(run / "seed-0", read_config(run))
    assert model.experts.pool is not None
    rows = model.base.embed(model.read(arrays["x"]))
    shared = among(rows, kit.anchors.inputs).numpy()
    assert 20 < shared.sum() <= len(kit.anchors)
    owners, kept = {}, []
    for name, mine in (("east", arrays["domain"] < 2), ("west", arrays["domain"] >= 2)):
        data = write_arrays(tmp_path / f"{name}.npz", x=arrays["x"][mine], y=arrays["y"][mine])
        expert = editing.train_expert(kit, name, data, tmp_path / name)
        found = expert.statistics()
        assert found is not None
        assert found.examples < expert.info["training"]["examples"]  # those that are shared were left out
        owners[name] = found
        split, _ = editing.read_own_data(kit.task, kit.info.classes, kit.info, kit.base, data, None, None)
        own = embed_split(kit.config, kit.base, split)
        held = torch.randperm(len(own), generator=generator(kit.seed, "own data", name))
        own = own.only(held[max(2, round(editing.HELD_OUT * len(own))) :])
        kept.append(own.only((~among(own.inputs, kit.anchors.inputs)).nonzero()[:, 0]))
    total = model.experts.pool.total(owners, model.classes)
    everything = concatenate([kit.anchors, *kept])
    pooled = collect(model.experts.pool.map, everything.inputs, everything.labels, model.classes)
    assert total.counts.tolist() == pooled.counts.tolist()
    torch.testing.assert_close(total.gram, pooled.gram, rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(total.moments, pooled.moments, rtol=1e-6, atol=1e-4)


def test_a_kit_says_what_statistics_are_sent_back(run: Path, tmp_path: Path, ask: Ask) -> None:
    inside = json.loads(succeeded(ask("experts", "kit", run, "--out", tmp_path / "a.zip", "--json")))
    folder = train(run, "own", tmp_path)
    assert inside["statistics"]["features"] == read_statistics(folder / FILE).map.outputs
    assert inside["statistics"]["bytes"] == pytest.approx((folder / FILE).stat().st_size, rel=0.1)
    assert "--no-statistics" in succeeded(ask("experts", "kit", run, "--out", tmp_path / "b.zip"))


# --- statistics that no owner can have


def save_bad(folder: Path, change: Callable[[Path, Statistics], None], renamed: bool = True) -> None:
    """Change a file of statistics, and by default let expert.json name the changed one."""
    change(folder / FILE, read_statistics(folder / FILE))
    if renamed:
        info = read_json(folder / "expert.json", dict)
        info["statistics"]["sha256"] = mark_of(folder / FILE)
        write_json(folder / "expert.json", info)


def mark_of(path: Path) -> str:
    """Return the hash of a file of statistics by which an expert names it, whatever the file holds."""
    from safetensors import safe_open

    from redx.io.hashing import hash_tensors
    from redx.models.statistics import KEY

    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()[KEY])
        return hash_tensors({name: file.get_tensor(name) for name in ("gram", "moments", "counts")}, json.dumps(about))


def with_tensors(**changed: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path, Statistics], None]:
    """Return a change of tensors of a file."""

    def change(path: Path, own: Statistics) -> None:
        tensors = own.tensors()
        write(path, tensors | {name: one(tensors[name]).contiguous() for name, one in changed.items()}, own.describe())

    return change


def described(**changed: Any) -> Callable[[Path, Statistics], None]:
    """Return a change of what a file says of itself."""
    return lambda path, own: write(path, own.tensors(), own.describe() | changed)


def write(path: Path, tensors: dict[str, torch.Tensor], about: dict[str, Any]) -> None:
    save_file(tensors, path, {"statistics": json.dumps(about)})


def scaled(path: Path, own: Statistics) -> None:
    """Write the statistics of an owner whose features are a thousand times too large."""
    factor = torch.ones(own.map.outputs, dtype=torch.float64)
    factor[: own.map.width] = 1e3
    both = (factor * factor[:, None])[torch.ones_like(own.gram).triu().bool()]
    tensors = own.tensors() | {"gram": (both * own.upper).float(), "moments": (factor[:, None] * own.moments).float()}
    write(path, tensors, own.describe())


def of_fewer_features(path: Path, own: Statistics) -> None:
    """Write the statistics of a map with one random feature less."""
    gram = own.gram[:-1, :-1]
    tensors = {"gram": gram[torch.ones_like(gram).triu().bool()].float(), "moments": own.moments[:-1].float()}
    write(path, own.tensors() | tensors, own.describe() | {"size": own.map.size - 1})


def one_more(path: Path, own: Statistics) -> None:
    """Write a tensor that statistics do not have."""
    write(path, own.tensors() | {"more": own.counts.clone()}, own.describe())


def impossible(path: Path, own: Statistics) -> None:
    """Write products of two features that are larger than their squares allow."""
    gram = own.gram.clone()
    gram[1, 2:5] = 100 * gram[0, 0]
    upper = gram[torch.ones_like(gram).triu().bool()]
    write(path, own.tensors() | {"gram": upper.float()}, own.describe())


BAD: dict[str, tuple[Callable[[Path, Statistics], None], str]] = {
    "another map": (described(seed=7), "of another feature map"),
    "fewer features": (of_fewer_features, "of another feature map"),
    "another size": (described(size=3), "has not the shape"),
    "another base": (described(base="0" * 64), "on another base"),
    "impossible": (impossible, "not positive semidefinite"),
    "negative": (with_tensors(gram=torch.neg), "no sums of examples"),
    "too large": (with_tensors(moments=lambda one: 1e3 * one), "no sums of examples"),
    "scaled": (scaled, "features of another size"),
    "no rows": (with_tensors(counts=torch.zeros_like), "count no examples"),
    "a class twice": (described(classes=["low", "low"]), "name a class twice"),
    "an unknown class": (described(classes=["low", "other"]), "which the expert does not bring"),
    "NaN": (with_tensors(gram=lambda one: one * float("nan")), "NaN or infinity"),
    "double precision": (with_tensors(gram=torch.Tensor.double), "single precision"),
    "half precision": (with_tensors(moments=torch.Tensor.half), "single precision"),
    "whole numbers": (with_tensors(gram=torch.Tensor.long), "single precision"),
    "counts as fractions": (with_tensors(counts=torch.Tensor.float), "count no examples"),
    "a tensor more": (one_more, "other tensors"),
    "something else said": (described(more=1), "holds no statistics"),
}


@pytest.fixture(scope="module")
def owner(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an honest owner's expert."""
    return train(target, "new", tmp_path_factory.mktemp("owner"))


@pytest.mark.parametrize("name", BAD)
def test_bad_statistics_are_refused_in_one_sentence(
    name: str, target: Path, owner: Path, tmp_path: Path, ask: Ask
) -> None:
    change, words = BAD[name]
    bad, before = Path(shutil.copytree(owner, tmp_path / "bad", ignore=WITHOUT_MANIFEST)), contents(target)
    save_bad(bad, change)
    for command in (("add", target), ("replace", target, "0"), ("diff", target, "--add")):
        refused(answer := ask("experts", *command, bad), words)
        assert len(answer[2].rstrip(".\n").split(". ")) == 1, answer[2]
    assert contents(target) == before


def test_a_damaged_or_missing_file_is_refused(target: Path, owner: Path, tmp_path: Path, ask: Ask) -> None:
    before = contents(target)

    def refuse(change: Callable[[Path], object], words: str) -> None:
        bad = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(owner, bad, ignore=WITHOUT_MANIFEST)
        change(bad / FILE)
        for command in (("add", target), ("replace", target, "0"), ("diff", target, "--add")):
            refused(ask("experts", *command, bad), words)

    refuse(lambda path: path.unlink(), FILE)
    refuse(lambda path: path.write_bytes(path.read_bytes()[:-5]), "truncated")
    refuse(lambda path: path.write_bytes(b""), FILE)
    refuse(lambda path: save_file(load_file(path), path), "holds no statistics")  # without a word on them
    other = Expert.load(target / "seed-0" / "experts" / "0").statistics()
    assert other is not None
    refuse(other.save, "other statistics than expert.json names")
    assert contents(target) == before
