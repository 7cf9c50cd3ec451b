"""The scikit-learn face: all of scikit-learn's own checks, and what only this classifier promises."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris, make_blobs
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import redx
from helpers.own_encoder import draw_images, own_encoder
from redx import RedClassifier, RedxError
from redx.composition import certificate, evaluation, rules
from redx.models.expert import Expert
from redx.models.router import NetworkRouter

SKLEARN = tuple(map(int, sklearn.__version__.split(".")[:2]))
QUICK: dict[str, Any] = {"random_state": 0}


def draw_blobs(*size: int, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
    found: Any = make_blobs(*size, **settings)
    return found[0], found[1]


@pytest.fixture(autouse=True)
def _calm() -> Any:
    """Small data often cannot support the promise of every expert; one test looks at that warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Nobody can promise")
        yield


@parametrize_with_checks([RedClassifier()])
def test_scikit_learn_has_nothing_to_complain_about(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.skipif(SKLEARN < (1, 9), reason="scikit-learn has no such check before 1.9")
def test_the_check_that_scipy_must_be_told_of_passes_too() -> None:
    """It is skipped above unless an environment variable was set before the first import of scipy."""
    code = """
from redx import RedClassifier
from sklearn.utils.estimator_checks import estimator_checks_generator
for estimator, check in estimator_checks_generator(RedClassifier()):
    if "array_api" in getattr(check, "func", check).__name__:
        check(estimator)
        print("passed")
"""
    told = {**os.environ, "SCIPY_ARRAY_API": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=told, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "passed" in done.stdout


@pytest.fixture(scope="module")
def blobs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Six classes in three domains, overlapping a little."""
    X, y = draw_blobs(360, centers=6, n_features=5, cluster_std=3.0, random_state=1)
    return X, np.array(list("abcdef"))[y], np.array(["north", "east", "south"])[y // 2]


@pytest.fixture(scope="module")
def fitted(blobs: tuple[np.ndarray, ...]) -> RedClassifier:
    X, y, domains = blobs
    return RedClassifier(**QUICK).fit(X, y, domains=domains)


def copied(classifier: RedClassifier) -> RedClassifier:
    """One that a test may change."""
    return copy.deepcopy(classifier)


def test_in_a_pipeline_a_search_and_cross_validation() -> None:
    X, y = load_iris(return_X_y=True)
    pipe = make_pipeline(StandardScaler(), RedClassifier(**QUICK))
    assert pipe.fit(X, y).score(X, y) > 0.85
    search = GridSearchCV(pipe, {"redclassifier__rule": ["red", "base"], "redclassifier__share": [0.3]}, cv=2)
    assert search.fit(X, y).best_score_ > 0.7
    assert search.predict_proba(X).shape == (150, 3)


def test_cross_validation_deals_out_the_domains(blobs: tuple[np.ndarray, ...]) -> None:
    X, y, domains = blobs
    scores = cross_val_score(RedClassifier(**QUICK), X, y, cv=2, params={"domains": domains})
    assert scores.min() > 0.6


@pytest.mark.parametrize("settings", [{}, {"router": "mlp"}, {"rule": "average"}, {"rule": "global"}], ids=str)
def test_joblib_round_trip_is_exact(blobs: tuple[np.ndarray, ...], tmp_path: Path, settings: dict[str, Any]) -> None:
    X, y, domains = blobs
    before = RedClassifier(**QUICK, **settings).fit(X, y, domains=domains)
    joblib.dump(before, tmp_path / "model.joblib")
    after = joblib.load(tmp_path / "model.joblib")
    for ask in ("decision_function", "predict_proba", "certified_radius", "predict"):
        assert np.array_equal(getattr(before, ask)(X), getattr(after, ask)(X))
    if not settings:
        assert after.add_expert(X[y == "a"], y[y == "a"], "west") == "west"
    assert b"torch." not in (tmp_path / "model.joblib").read_bytes()  # of a module; a setting may have the value torch


def test_the_same_seed_gives_the_same_and_nothing_else_is_touched(blobs: tuple[np.ndarray, ...]) -> None:
    X, y, domains = blobs
    torch.manual_seed(7)
    np.random.seed(7)
    state: Any = np.random.get_state
    states = torch.get_rng_state(), state()[1].copy(), torch.get_num_threads()
    one, other = (RedClassifier(**QUICK).fit(X, y, domains=domains) for _ in range(2))
    assert np.array_equal(one.decision_function(X), other.decision_function(X))
    third = RedClassifier(**{**QUICK, "random_state": 1}).fit(X, y, domains=domains)
    assert not np.array_equal(one.decision_function(X), third.decision_function(X))
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], state()[1])
    assert states[2] == torch.get_num_threads()


def test_fitting_writes_no_file(blobs: tuple[np.ndarray, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "cache"))
    X, y, domains = blobs
    RedClassifier(**QUICK).fit(X, y, domains=domains).predict(X)
    assert not list(tmp_path.iterdir())


def test_domains_given_and_found(fitted: RedClassifier, blobs: tuple[np.ndarray, ...]) -> None:
    X, y, _ = blobs
    assert fitted.model_.experts.names == ("east", "north", "south")
    assert fitted.score(X, y) > 0.7
    found = RedClassifier(**QUICK, n_domains=3).fit(X, y)
    assert found.model_.experts.names == ("cluster-1", "cluster-2", "cluster-3")
    assert found.score(X, y) > 0.7


def test_probabilities_decisions_and_answers_agree(fitted: RedClassifier, blobs: tuple[np.ndarray, ...]) -> None:
    X, y, domains = blobs
    logits, shares = fitted.decision_function(X), fitted.predict_proba(X)
    assert np.allclose(shares, np.exp(logits) / np.exp(logits).sum(1, keepdims=True))
    assert np.array_equal(fitted.predict(X), fitted.classes_[shares.argmax(1)])
    two = np.isin(y, ["a", "c"])
    binary = RedClassifier(**QUICK).fit(X[two], y[two], domains=domains[two])
    lead = binary.decision_function(X)
    assert lead.shape == (len(X),)
    assert np.array_equal(binary.predict(X), binary.classes_[(lead > 0).astype(int)])


@pytest.mark.parametrize("rule", rules.RULES)
@pytest.mark.parametrize("experts", ["risk", "plain"])
def test_every_rule_answers(blobs: tuple[np.ndarray, ...], rule: str, experts: str) -> None:
    X, y, domains = blobs
    classifier = RedClassifier(rule, experts=experts, **{**QUICK, "epochs": 2}).fit(X, y, domains=domains)
    asked: dict[str, Any] = {"domains": domains} if rule.endswith("oracle") else {}
    assert np.allclose(classifier.predict_proba(X, **asked).sum(1), 1)
    radius = classifier.certified_radius(X, **asked)
    assert ((radius >= 0) & (radius <= 1)).all()
    if asked:
        with pytest.raises(ValueError, match="give `domains`"):
            classifier.predict(X)


def test_the_rule_base_is_the_base(fitted: RedClassifier, blobs: tuple[np.ndarray, ...]) -> None:
    X = blobs[0]
    classifier = copied(fitted).set_params(rule="base")
    model: Any = classifier.model_
    assert np.array_equal(
        classifier.decision_function(X), model.experts.base_logits(None, model.base.embed(model.read(X))).numpy()
    )
    assert (classifier.certified_radius(X) == 1).all()


@pytest.mark.parametrize("experts", ["risk", "anchored", "plain"])
def test_the_radius_is_exact(blobs: tuple[np.ndarray, ...], experts: str) -> None:
    X, y, domains = blobs
    classifier = RedClassifier(experts=experts, **QUICK).fit(X, y, domains=domains)
    rule, parts = classifier._parts(X, None)
    radius = torch.from_numpy(classifier.certified_radius(X))
    weights, said = rule.weights(parts), torch.from_numpy(np.searchsorted(classifier.classes_, classifier.predict(X)))
    corners = torch.eye(parts.experts, dtype=weights.dtype)

    def moved(share: torch.Tensor) -> torch.Tensor:
        """Answers when this share of the mass goes to each expert in turn, (N, K)."""
        each = [(1 - share)[:, None] * weights + share[:, None] * corner for corner in corners]
        return torch.stack([evaluation.predict(rule, parts, some) for some in each], 1)

    breakable = radius < 1 - 1e-6
    assert (moved((radius - 1e-6).clamp_min(0)) == said[:, None]).all()
    assert (moved((radius + 1e-6).clamp_max(1)) != said[:, None]).any(1)[breakable].all()
    assert breakable.any() or experts == "risk"
    assert (
        evaluation.predict(
            rule,
            parts,
            certificate.worst_weights(
                rules.compose(rule, parts, weights), rules.vertex_scores(rule, parts), weights, radius.clamp_max(1)
            ),
        )
        == said
    )[~breakable].all()


def test_experts_come_and_go_without_a_trace(
    fitted: RedClassifier, blobs: tuple[np.ndarray, ...], tmp_path: Path
) -> None:
    X, y, _ = blobs
    classifier = copied(fitted)
    before = classifier.decision_function(X)
    new = y == "a"
    assert classifier.add_expert(X[new], y[new], "west") == "west"
    assert classifier.model_.experts.names == ("east", "north", "south", "west")
    with_it = classifier.decision_function(X)
    gone = classifier.remove_expert("west")
    assert np.array_equal(classifier.decision_function(X), before)
    gone.save(tmp_path / "west")
    classifier.add_expert(tmp_path / "west")
    assert np.array_equal(classifier.decision_function(X), with_it)
    classifier.remove_expert("west")
    classifier.add_expert(classifier.remove_expert("east"))
    assert np.array_equal(classifier.decision_function(X), before)


@pytest.mark.parametrize("kind", [str, float, object])
def test_an_expert_brings_new_classes_and_takes_them_along(blobs: tuple[np.ndarray, ...], kind: Any) -> None:
    X, y, domains = blobs
    names = {label: number if kind in (int, float) else str(label) for number, label in enumerate(np.unique(y))}
    labels = np.array([names[label] for label in y], kind)
    classifier = RedClassifier(rule="sum", **{**QUICK, "epochs": 60}).fit(X, labels, domains=domains)
    before, fitted = classifier.decision_function(X), classifier.classes_
    new = np.array([70, 71] if kind in (int, float) else ["farther", "far"], kind)
    away = X[:80] + 8 * X.std(0) * np.array([1, -1] * 40)[:, None]
    answers = np.tile(new, 40)
    with pytest.raises(ValueError, match="new_classes=True"):
        classifier.add_expert(away, answers, "west")
    assert classifier.add_expert(away, answers, "west", new_classes=True) == "west"
    assert classifier.classes_.dtype.kind == fitted.dtype.kind
    assert set(classifier.classes_) == {*fitted, *new}
    assert classifier.predict_proba(X).shape == (len(X), len(fitted) + 2)
    assert np.isin(classifier.predict(away), new).any()
    restored = copied(classifier)
    assert np.array_equal(restored.predict(away), classifier.predict(away))
    gone = classifier.remove_expert("west")
    assert classifier.classes_ is fitted
    assert np.array_equal(classifier.decision_function(X), before)
    classifier.add_expert(gone)
    assert np.array_equal(classifier.decision_function(away), restored.decision_function(away))
    if kind in (int, float):
        spelled = Expert(gone.info | {"domain": "east 2", "new_classes": ["far", "near"]}, gone.tensors())
        with pytest.raises(ValueError, match="labels of one kind"):
            classifier.add_expert(spelled)


def test_the_base_learns_from_rows_that_are_not_shared(blobs: tuple[np.ndarray, ...], tmp_path: Path) -> None:
    X, y, domains = blobs
    classifier = RedClassifier(share=0.05, **QUICK).fit(X, y, domains=domains)
    model: Any = classifier.model_
    h = model.base.embed(model.read(X))
    right = [
        (classifier.classes_[logits.argmax(1).numpy()] == y).mean()
        for logits in (model.experts.base_logits(None, h), model.base.classify(h))
    ]
    assert right[0] > right[1]
    joblib.dump(classifier, tmp_path / "model.joblib")
    restored = joblib.load(tmp_path / "model.joblib")
    for one in (classifier, restored):  # sums of owners are pickled too
        one.remove_expert("east")
    assert np.array_equal(classifier.decision_function(X), restored.decision_function(X))


def test_an_owner_may_keep_its_statistics(fitted: RedClassifier, blobs: tuple[np.ndarray, ...]) -> None:
    X, y, _ = blobs
    new = y == "a"
    for statistics in (False, True):
        classifier = copied(fitted)
        classifier.add_expert(X[new] + 0.1, y[new], "west", statistics=statistics)
        base = classifier.set_params(rule="base").decision_function(X)
        same = np.array_equal(base, copied(fitted).set_params(rule="base").decision_function(X))
        assert same is not statistics


def test_an_expert_trained_alone_is_the_one_trained_in_company(blobs: tuple[np.ndarray, ...]) -> None:
    X, y, domains = blobs
    classifier = RedClassifier(experts="anchored", **QUICK).fit(X, y, domains=domains)
    before = classifier.decision_function(X)
    classifier.remove_expert("east")
    classifier.add_expert(X[domains == "east"], y[domains == "east"], "east")
    assert np.allclose(classifier.decision_function(X), before, atol=1e-4)


def test_refusals_say_what_to_do(fitted: RedClassifier, blobs: tuple[np.ndarray, ...], tmp_path: Path) -> None:
    X, y, domains = blobs
    classifier = copied(fitted)
    with pytest.raises(RedxError, match="new_classes=True"):
        classifier.add_expert(X[:5], ["z"] * 5, "west")
    with pytest.raises(RedxError, match="already"):
        classifier.add_expert(X[:5], y[:5], "east")
    with pytest.raises(RedxError, match="no name"):
        classifier.add_expert(X[:5], y[:5])
    with pytest.raises(RedxError, match="folder of an expert"):
        classifier.add_expert(X)
    with pytest.raises(RedxError, match="all classes"):
        classifier.add_expert(X, y, "west")
    with pytest.raises(RedxError, match="no expert 'west'"):
        classifier.remove_expert("west")
    with pytest.raises(ValueError, match="only one domain"):
        RedClassifier().fit(X, y, domains=["x"] * len(X))
    with pytest.raises(ValueError, match="fit anew with this rule"):
        classifier.set_params(rule="moe").predict(X)
    wrongs: list[dict[str, Any]] = [
        {"rule": "best"},
        {"experts": "wise"},
        {"experts": "owned"},
        {"held_out": 1},
        {"epochs": 0},
        {"by": "owner"},
        {"budget": "all"},
    ]
    wrongs += [{"hidden": 0.5}, {"n_domains": 1}, {"share": "all"}]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="choose"):
            RedClassifier(**wrong).fit(X, y)
    other = RedClassifier(**{**QUICK, "random_state": 5}).fit(X, y, domains=domains)
    other.model_.experts["east"].save(tmp_path / "east")
    classifier.set_params(rule="red").remove_expert("east")
    with pytest.raises(RedxError, match="another base"):
        classifier.add_expert(tmp_path / "east")


@pytest.mark.parametrize("router", ["mlp", "linear"])
def test_a_router_of_fixed_width_takes_no_new_expert(blobs: tuple[np.ndarray, ...], router: str) -> None:
    X, y, domains = blobs
    classifier = RedClassifier(router=router, **QUICK).fit(X, y, domains=domains)
    assert classifier.score(X, y) > 0.7
    before = classifier.decision_function(X)
    with pytest.raises(RedxError, match='router="keys"'):
        classifier.add_expert(X[:5], y[:5], "west")
    classifier.add_expert(classifier.remove_expert("north"))
    assert np.array_equal(classifier.decision_function(X), before)


def test_data_that_are_all_alike_have_domains_too() -> None:
    y = np.array([0, 1] * 20)
    assert RedClassifier(**QUICK).fit(np.ones((40, 2)), y).predict_proba(np.ones((3, 2))).shape == (3, 2)


def test_texts_with_a_backbone(qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDX_CACHE", str(tmp_path / "cache"))
    texts = [f"{'plus' if row % 2 else 'minus'} {row} {'km' if row % 4 < 2 else 'kg'}" for row in range(60)]
    y = np.array(["minus", "plus"])[np.arange(60) % 2]
    domains = np.array(["km" if row % 4 < 2 else "kg" for row in range(60)])
    classifier = RedClassifier(**QUICK, backbone=str(qwen)).fit(texts, y, domains=domains)
    assert classifier.score(texts, y) > 0.8
    joblib.dump(classifier, tmp_path / "texts.joblib")
    assert np.array_equal(joblib.load(tmp_path / "texts.joblib").predict_proba(texts), classifier.predict_proba(texts))
    assert len(cross_val_score(classifier, texts, y, cv=2)) == 2
    assert classifier.add_expert(["plus 7 mm", "minus 9 mm"], ["plus", "minus"], "mm") == "mm"
    for wrong in ("plus", [1, 2], [], np.ones((3, 2))):
        with pytest.raises(ValueError, match="sequence of texts"):
            classifier.predict(wrong)


def test_the_risk_is_chosen_and_kept() -> None:
    X, y = draw_blobs(1200, centers=6, n_features=5, cluster_std=4.0, random_state=2)
    classifier = RedClassifier(**QUICK, risk=0.05).fit(X[:800], y[:800], domains=y[:800] // 2)
    assert classifier.risk_ == 0.05
    base = RedClassifier("base", **QUICK, risk=0.05).fit(X[:800], y[:800], domains=y[:800] // 2).predict(X[800:])
    certified = (classifier.certified_radius(X[800:]) == 1) & (classifier.predict(X[800:]) == y[800:])
    assert ((base == y[800:]) & ~certified).mean() <= 0.05 + 0.04  # sampling error of 400 examples
    silent = classifier.calibrate(risk=0.0).predict(X[800:])
    assert np.array_equal(silent, base)
    assert classifier.calibrate(X[800:], y[800:], risk=0.2).risk_ == 0.2


def test_the_risk_is_kept_by_domain_where_labels_are_the_domains_own() -> None:
    X, y = draw_blobs(1200, centers=6, n_features=5, cluster_std=4.0, random_state=2)
    domains = y[:800] // 2
    classifier = RedClassifier(**QUICK, risk=0.1).fit(X[:800], y[:800], domains=domains)
    control = classifier.model_.control
    assert control is not None
    assert (control.by, control.budget, control.domain_names) == ("domain", "harm", ("0", "1", "2"))
    together = RedClassifier(**QUICK, risk=0.1, by="all", budget="routing").fit(X[:800], y[:800], domains=domains)
    assert together.model_.control is not None
    assert (together.model_.control.by, together.model_.control.budget) == ("all", "routing")
    together.calibrate(by="domain", budget="harm", risk=0.1)
    assert np.array_equal(together.predict(X[800:]), classifier.predict(X[800:]))
    found = RedClassifier(**QUICK, risk=0.1, by="domain").fit(X[:800], y[:800])  # clusters share labels
    assert found.model_.control is not None
    assert found.model_.control.by == "domain"
    assert len(found.predict(X[800:])) == 400


def test_a_risk_that_the_data_do_not_support_is_refused() -> None:
    X, y = draw_blobs(60, centers=3, random_state=0)
    assert RedClassifier(**QUICK).fit(X, y).risk_ == pytest.approx(1 / 13)
    with pytest.raises(ValueError, match=r"cannot be promised with 12 .* larger held_out"):
        RedClassifier(**QUICK, risk=0.001).fit(X, y)
    with pytest.raises(ValueError, match="no number from 0 to 1"):
        RedClassifier(**QUICK, risk=7).fit(X, y)
    with pytest.raises(ValueError, match='fit with experts="risk"'):
        RedClassifier(**QUICK, experts="plain").fit(X, y).calibrate(risk=0.1)


def test_a_module_as_backbone(tmp_path: Path) -> None:
    held, test = draw_images(400, 2), draw_images(200, 3)
    X, new = held.x.double().numpy(), test.x.numpy()
    encoder = own_encoder()
    classifier = RedClassifier(**QUICK, backbone=encoder).fit(X, held.y, domains=held.domains)
    assert classifier.score(new, test.y) > 0.6
    assert classifier.certified_radius(new).shape == (200,)
    again: Any = clone(classifier)
    assert np.array_equal(again.fit(X, held.y, domains=held.domains).predict(new), classifier.predict(new))
    joblib.dump(classifier, tmp_path / "classifier.joblib")
    assert np.array_equal(joblib.load(tmp_path / "classifier.joblib").predict(new), classifier.predict(new))
    function = RedClassifier(**QUICK, backbone=lambda batch: encoder(torch.from_numpy(batch).float()))
    assert np.array_equal(function.fit(X, held.y, domains=held.domains).predict(new), classifier.predict(new))
    classifier.remove_expert("cars")
    classifier.add_expert(X[:100], ["bus", "van"] * 50, domain="cars")
    with pytest.raises(ValueError, match="fails on a batch"):
        classifier.predict(new[:, :, :2])
    classifier.backbone = own_encoder(width=5)
    with pytest.raises(ValueError, match="returns 5 features an example, and the model was made with 12"):
        classifier.predict(new)


def test_a_registered_router_and_rule() -> None:
    held = draw_images(300, 2)
    X = held.x.flatten(1).numpy()
    redx.ROUTERS.register("small", lambda inputs, experts, config: NetworkRouter(inputs, experts, "mlp", 4))
    redx.RULES.register("even", lambda parts: torch.full_like(parts.gates, 0.25))
    try:
        classifier = RedClassifier(**QUICK, router="small", rule="even").fit(X, held.y, domains=held.domains)
        assert len(classifier.predict(X)) == 300
    finally:
        redx.ROUTERS.unregister("small")
        redx.RULES.unregister("even")
