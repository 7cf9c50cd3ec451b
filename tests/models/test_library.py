"""Experts come and go: the algebra of a library, its files, and what a change would do."""

import json
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import redx
from redx.cli import main
from redx.composition import rules
from redx.errors import RedxError
from redx.io.files import check_name, natural_order, read_json, write_json
from redx.models import persistence
from redx.models.composed import Model
from redx.models.expert import Expert
from redx.models.library import ExpertLibrary
from redx.runs import editing
from redx.runs.presets import configure
from redx.tasks import get_task, tasks
from redx.tasks.arithmetic.task import TASKS

NAMES = ("range_2_20", "range_21_40", "range_41_60", "range_61_80", "range_81_100")
QUESTIONS = ["What is 37 plus 12?", "What is 2 plus 3?", "What is 50 plus 49?", "What is 11 plus 20?"]


@pytest.fixture
def run(addition: redx.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run that may be changed."""
    monkeypatch.setenv("REDX_CACHE", str(addition.folder.parent / "cache"))
    return Path(shutil.copytree(addition.folder, tmp_path / "run"))


@pytest.fixture
def model(run: Path) -> Model:
    return redx.load(run)


def scores(model: Model) -> torch.Tensor:
    parts = model.parts(QUESTIONS)
    rule = rules.get_rule("red")
    return rules.compose(rule, parts, rule.weights(parts))


def do(*words: object) -> None:
    """A command that ends well."""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert stop.value.code == 0


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one sentence a command ends with."""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert stop.value.code == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("redx: ")
    assert "\n" not in said
    return said


def test_the_order_of_names_is_the_one_people_expect() -> None:
    assert tuple(sorted(set(NAMES), key=natural_order)) == NAMES
    assert sorted(["b", "a10", "a9", "a"], key=natural_order) == ["a", "a9", "a10", "b"]


@pytest.mark.parametrize("name", [name for name in tasks() if name not in ("jsonl", "features")])
def test_every_task_names_its_domains_in_the_order_of_a_library(name: str) -> None:
    changes = {"operations": ["sub", "add"]} if name in TASKS else {}
    config = configure(name, "quick", limit=100, **changes)
    found = get_task(name).load(config, 0).domains
    assert list(found) == sorted(found, key=natural_order)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a\\b", ".hidden", "a\n", "x" * 101, "con "])
def test_a_name_cannot_lead_out_of_its_folder(name: str) -> None:
    with pytest.raises(RedxError, match="cannot be called"):
        check_name(name)


@pytest.mark.parametrize("router", ["router", "keys"])
def test_add_then_remove_restores_every_bit(model: Model, router: str) -> None:
    with model.using("red", router=router):
        before = scores(model)
        kept = model.experts.remove("range_41_60")
        assert "range_41_60" not in model.explain(QUESTIONS)[0]["weights"]
        without = scores(model)
        model.experts.add(kept)
        assert torch.equal(scores(model), before)
        model.experts.remove("range_41_60")
        assert torch.equal(scores(model), without)


def test_removal_masks_the_gate_and_shares_out_its_mass(model: Model) -> None:
    whole = model.explain(QUESTIONS)
    with model.using(without=["range_41_60"]):
        for before, after in zip(whole, model.explain(QUESTIONS), strict=True):
            left = 1 - before["weights"].pop("range_41_60")
            assert after["weights"] == pytest.approx({name: share / left for name, share in before["weights"].items()})


def test_the_end_does_not_depend_on_the_order(model: Model) -> None:
    whole, before = model.experts, None
    for order in (NAMES, NAMES[::-1], NAMES[2:] + NAMES[:2]):
        model.experts = ExpertLibrary({}, whole.base, whole.banks, whole.ownership, lambda: whole.fingerprint)
        for name in order:
            model.experts.add(whole[name])
        assert model.experts.names == NAMES
        assert before is None or torch.equal(scores(model), before)
        before = scores(model)


def test_where_no_expert_speaks_the_base_answers_bit_for_bit(model: Model) -> None:
    model.experts.ownership = model.experts.ownership.model_copy(update={"alpha": 1e-9})
    with model.using("red", router="keys"):
        parts = model.parts(QUESTIONS)
        assert not parts.residuals.any()
        assert torch.equal(scores(model), parts.base)


def test_changes_touch_no_other_expert_and_take_no_time(model: Model) -> None:
    scores(model)
    model.experts.fingerprint  # noqa: B018 - worked out once, at the first change
    others = {name: id(model.experts[name]) for name in NAMES[1:]}
    began = time.perf_counter()
    kept = model.experts.remove(NAMES[0])
    model.experts.add(kept)
    model.experts.replace(NAMES[0], kept)
    assert time.perf_counter() - began < 5  # that it is milliseconds, benchmarks/library.py shows
    assert {name: id(model.experts[name]) for name in NAMES[1:]} == others


def test_a_change_for_a_while_is_undone(model: Model) -> None:
    before = scores(model)

    def fail() -> None:
        with model.experts.changing() as library:
            library.remove(NAMES[1])
            library.remove(NAMES[2])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(scores(model), before)


def test_experts_are_read_when_first_asked(model: Model) -> None:
    assert not any(expert.loaded for expert in model.experts)
    model.predict(QUESTIONS[:1], top=1)
    assert sum(expert.loaded for expert in model.experts) == 1
    assert model.predict(QUESTIONS, top=len(NAMES)) == model.predict(QUESTIONS)


def test_the_router_of_fixed_width_says_that_it_must_be_trained_anew(model: Model) -> None:
    old = model.experts[NAMES[0]]
    new = Expert(old.info | {"domain": "newcomer"}, old.tensors())
    model.experts.add(new)
    with pytest.raises(RedxError, match=r"no gate for the expert 'newcomer'.*redx router train"):
        model.predict(QUESTIONS)
    with model.using(router="keys"):
        assert len(model.explain(QUESTIONS)[0]["weights"]) == 6


def test_an_expert_file_says_what_it_is(run: Path) -> None:
    facts = json.loads((run / "seed-0" / "experts" / NAMES[0] / "expert.json").read_text())
    assert facts["domain"] == NAMES[0]
    assert set(facts["classes"]) <= {str(answer) for answer in range(2, 21)}
    assert set(facts["base"]) >= {"base weights", "backbone", "tokenizer", "feature settings", "classes", "probe"}
    assert all(facts["training"].values())
    assert "cutoff" in facts["ownership"]


@pytest.mark.parametrize("part", ["base weights", "backbone", "tokenizer", "feature settings", "classes"])
def test_an_expert_of_another_base_is_refused_with_what_differs(model: Model, part: str) -> None:
    kept = model.experts.remove(NAMES[0])
    other = Expert(kept.info | {"base": kept.info["base"] | {part: "other"}}, kept.tensors())
    with pytest.raises(RedxError, match=f"another base: {part} differ"):
        model.experts.add(other)


def test_an_expert_whose_probe_differs_is_refused(model: Model) -> None:
    kept = model.experts.remove(NAMES[0])
    moved = [[value + 0.1 for value in row] for row in kept.info["base"]["probe"]]
    other = Expert(kept.info | {"base": kept.info["base"] | {"probe": moved}}, kept.tensors())
    with pytest.raises(RedxError, match="features of the probe batch differ"):
        model.experts.add(other)


def test_commands_change_a_run_and_lose_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "seed-0" / "parts" / "residual-owned.safetensors").read_bytes()
    do("experts", "remove", str(run), NAMES[4])
    kept = run / "seed-0" / "removed" / NAMES[4]
    assert redx.load(run).domains == NAMES[:4]
    assert (run / "seed-0" / "parts" / "residual-owned.safetensors").read_bytes() != before
    do("evaluate", str(run), "--rule", "red")
    do("experts", "add", str(run), str(kept))
    assert (run / "seed-0" / "parts" / "residual-owned.safetensors").read_bytes() == before
    do("experts", "replace", str(run), NAMES[4], str(kept))
    assert (run / "seed-0" / "parts" / "residual-owned.safetensors").read_bytes() == before
    do("experts", "list", str(run))
    assert NAMES[4] in capsys.readouterr().out


def test_a_diff_tells_what_would_happen_and_writes_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(path for path in run.rglob("*") if path.is_file())
    do("experts", "diff", str(run), "--remove", NAMES[2], "--json")
    found = json.loads(capsys.readouterr().out)
    assert sorted(path for path in run.rglob("*") if path.is_file()) == files
    assert set(found["domains"]) == set(NAMES)
    assert found["flips"] >= len(found["examples"])
    assert found["gained"] - found["lost"] == round(
        (found["accuracy"]["after"] - found["accuracy"]["before"])
        * sum(each["examples"] for each in found["domains"].values())
    )
    one = found["certificates"]["0"]
    assert one["before"] == found["accuracy"]["before"]
    assert one["after"] == found["accuracy"]["after"]
    do("experts", "remove", str(run), NAMES[2])
    kept = run / "seed-0" / "removed" / NAMES[2]
    capsys.readouterr()
    do("experts", "diff", str(run), "--add", str(kept), "--json")
    back = json.loads(capsys.readouterr().out)
    assert back["accuracy"] == {"before": found["accuracy"]["after"], "after": found["accuracy"]["before"]}
    assert (back["gained"], back["lost"]) == (found["lost"], found["gained"])
    do("experts", "diff", str(run), "--add", str(kept))
    assert "Certificates" in capsys.readouterr().out


def test_an_expert_is_trained_anywhere_from_base_and_shared_subset(run: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    for name in ("config.json", "seed-0/model.json", "seed-0/base.safetensors", "seed-0/shared.safetensors"):
        (away / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(run / name, away / name)
    lines = [{"question": f"What is {a} plus {b}?", "answer": a + b} for a in range(2, 8) for b in range(2, 5)]
    data = tmp_path / "small.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    do("experts", "train", str(away), "--domain", "small sums", "--data", str(data), "--out", str(tmp_path / "one"))
    kept = ["--dtype", "float16", "--out", str(tmp_path / "half")]
    do("experts", "train", str(away), "--domain", "small sums", "--data", str(data), *kept)
    one, half = (load_file(tmp_path / name / "expert.safetensors") for name in ("one", "half"))
    assert all(torch.equal(one[name].half(), half[name]) for name in one if one[name].is_floating_point())
    do("experts", "add", str(run), str(tmp_path / "half"))
    do("router", "train", str(run), "--domain", "small sums", "--data", str(data))
    model = redx.load(run)
    assert model.experts.names == (*NAMES, "small sums")
    assert set(model.explain(QUESTIONS)[0]["weights"]) == set(model.experts.names)


def test_router_train_does_only_that(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    do("experts", "remove", str(run), NAMES[0])
    others = {path: path.read_bytes() for path in (run / "seed-0" / "experts").rglob("*.safetensors")}
    base = (run / "seed-0" / "base.safetensors").read_bytes()
    do("router", "train", str(run))
    assert redx.load(run).facts.routed == NAMES[1:]
    assert (run / "seed-0" / "base.safetensors").read_bytes() == base
    assert all(path.read_bytes() == content for path, content in others.items())
    do("experts", "add", str(run), str(run / "seed-0" / "removed" / NAMES[0]))
    assert "redx router train" in capsys.readouterr().out
    assert "--router keys" in refused(capsys, "predict", run, "What is 3 plus 4?")
    do("predict", str(run), "What is 3 plus 4?", "--router", "keys")


def test_a_saved_model_is_the_same_model(model: Model, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "saved")
    again = redx.load(tmp_path / "saved")
    assert torch.equal(scores(again), scores(model))
    told = (tmp_path / "saved" / "README.md").read_text()
    assert all(name in told for name in NAMES)
    assert "certified ε = 1" in told
    with pytest.raises(RedxError, match="not empty"):
        model.save_pretrained(tmp_path / "saved")
    model.experts.remove(NAMES[3])
    model.save_pretrained(tmp_path / "fewer")
    assert torch.equal(scores(redx.load(tmp_path / "fewer")), scores(model))


def test_bad_input_gets_one_sentence_and_changes_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = run / "seed-0" / "experts" / NAMES[0]
    listed = sorted(path.name for path in place.parent.iterdir())

    def spoil(name: str) -> Path:
        return Path(shutil.copytree(place, tmp_path / name))

    assert "already" in refused(capsys, "experts", "add", run, place)
    truncated = spoil("truncated")
    do("experts", "remove", str(run), NAMES[0])
    do("experts", "add", str(run), str(run / "seed-0" / "removed" / NAMES[0]))
    capsys.readouterr()
    (truncated / "expert.safetensors").write_bytes((place / "expert.safetensors").read_bytes()[:500])
    assert "truncated" in refused(capsys, "experts", "replace", run, NAMES[0], truncated)
    outside = spoil("outside")
    write_json(outside / "expert.json", read_json(place / "expert.json") | {"domain": "../x"})
    assert "cannot be called" in refused(capsys, "experts", "add", run, outside)
    pickled = spoil("pickled")
    (pickled / "expert.safetensors").rename(pickled / "expert.pt")
    assert "unpickling runs" in refused(capsys, "experts", "add", run, pickled)
    (tmp_path / "bomb.zip").write_bytes(b"PK\x03\x04")
    assert "give the folder of an expert" in refused(capsys, "experts", "add", run, tmp_path / "bomb.zip")
    broken = spoil("nan")
    tensors = load_file(place / "expert.safetensors")
    save_file({name: value.float() * float("nan") for name, value in tensors.items()}, broken / "expert.safetensors")
    assert "contains NaN" in refused(capsys, "experts", "replace", run, NAMES[0], broken)
    odd = spoil("odd")
    save_file({name: value[..., :1].contiguous() for name, value in tensors.items()}, odd / "expert.safetensors")
    assert "do not fit" in refused(capsys, "experts", "replace", run, NAMES[0], odd)
    assert "There is no expert 'x'" in refused(capsys, "experts", "remove", run, "x")
    assert "nothing to compare" in refused(capsys, "experts", "diff", run)
    assert "not there" in refused(capsys, "experts", "add", run, tmp_path / "nowhere")
    for name in NAMES[1:]:
        do("experts", "remove", str(run), name)
    assert "last expert" in refused(capsys, "experts", "remove", run, NAMES[0])
    for name in NAMES[1:]:
        do("experts", "add", str(run), str(run / "seed-0" / "removed" / name))
    assert sorted(path.name for path in place.parent.iterdir()) == listed


def test_bad_own_data_is_refused_by_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "own.jsonl"
    words = ("experts", "train", run, "--domain", "x", "--data", data)
    data.write_text('{"question": "What is 3 plus 4?", "answer": 7}\n{"question": "huge", "answer": 1000}\n')
    assert "2" in (said := refused(capsys, *words))
    assert "no class of this model" in said
    data.write_text('{"question": "What is 3 plus 4?", "answer": 7}\n')
    assert "at least 8" in refused(capsys, *words)
    assert "no column 'b'" in refused(capsys, *words, "--text", "b")
    assert not (Path("trained") / "x").exists()
    assert "cannot be called" in refused(capsys, "experts", "train", run, "--domain", "../x", "--data", data)
    assert "cannot be kept as 'int8'" in refused(capsys, *words, "--dtype", "int8")


def test_python_and_command_line_change_a_run_alike(run: Path) -> None:
    kept = editing.remove_expert(run, NAMES[1])
    assert editing.add_expert(run, kept).domains == NAMES
    assert persistence.read_info(run / "seed-0").routed == NAMES
