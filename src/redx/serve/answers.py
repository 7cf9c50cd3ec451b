"""Answers of a loaded run to queries of one setting: answer, base, weights, contributions, radius."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from redx.composition.evaluation import certify
from redx.composition.parts import Parts, predicted_classes
from redx.composition.rules import Rule, contributing
from redx.errors import RedxError
from redx.model.model import Model
from redx.serve.adversary import reachable_classes, why_safe, worst_router
from redx.serve.loaded import LoadedRun
from redx.serve.queries import Options, Query, ordered_weights
from redx.tasks import extension_of

Answer = dict[str, Any]


def answer_queries(loaded: LoadedRun, queries: Sequence[Query]) -> list[list[Answer]]:
    """Return the answers to queries that all have the same setting, as one batch.

    Parameters
    ----------
    loaded
        The run.
    queries
        Queries with equal settings; their options may differ.

    Returns
    -------
    list of list of dict
        By query, one answer per input.
    """
    setting = queries[0].setting
    with loaded.asking(setting) as model:
        if model.extension is not None:
            return _answer_extended(loaded, model, queries)
        options = [query.options for query in queries for _ in query.inputs]
        answers = _answer_rows(loaded, model, [value for query in queries for value in query.inputs], options)
    return _divide(answers, queries)


def _divide(answers: list[Answer], queries: Sequence[Query]) -> list[list[Answer]]:
    ends = accumulate((len(query.inputs) for query in queries), initial=0)
    return [answers[start:end] for start, end in pairwise(ends)]


@dataclass(frozen=True)
class _Batch:
    """What the model gives for the inputs of a batch."""

    rule: Rule
    names: tuple[str, ...]
    parts: Parts  # with the residuals that contribute
    weights: Tensor  # (N, K)
    predicted: Tensor  # (N,)
    radius: Tensor  # (N,)


def _answer_rows(loaded: LoadedRun, model: Model, inputs: list[Any], options: list[Options]) -> list[Answer]:
    """Return the answers of the composed model to single inputs."""
    rule, bank_id = model.rule_and_bank()
    h = model.base.embed(model.read(inputs))
    unknown = torch.full((len(h),), -1)
    parts = model.parts_of(h, bank_id, unknown, unknown)
    cutoff = getattr(parts.cutoffs, rule.adversary or "simplex") if parts.cutoffs else None
    active = torch.ones_like(parts.gates, dtype=torch.bool)
    if parts.confidences is not None and cutoff is not None:
        active = parts.confidences > cutoff  # (N, K)
    parts, weights = contributing(rule, parts), rule.weights(parts)
    names = model.experts.names if weights.shape[1] == len(model.experts) else ("pooled",)
    for row, wanted in enumerate(options):
        if (given := ordered_weights(wanted, names, rule.adversary)) is not None:
            weights[row] = torch.tensor(given, dtype=weights.dtype)
    certified = certify(rule, parts, weights)
    batch = _Batch(rule, names, parts, weights, certified.predicted, certified.radius)
    answers = _describe(loaded, model, batch)
    known: dict[float, Tensor] = {}
    shown = cutoff if cutoff is None or math.isfinite(cutoff) else str(cutoff)
    for answer, speaks in zip(answers, active.tolist(), strict=True):
        answer["cutoff"] = shown
        answer["active"] = [name for name, on in zip(names, speaks, strict=True) if on]
    for row, wanted in enumerate(options):
        answer = answers[row]
        if wanted.detail:
            answer["detail"] = _detail(loaded, batch, row)
            answer["why"] = _why(batch, row, str(answer["answer"]))
        if wanted.epsilon is not None and rule.adversary:
            answer["worst"] = _worst(loaded, batch, row, wanted.epsilon)
        if wanted.abstain is not None:
            strange = bool(_strange(loaded, h, wanted.abstain, known)[row])
            answer |= {"abstained": strange, "closest": answer["answer"]}
            answer["answer"] = None if strange else answer["answer"]
    return answers


def _strange(loaded: LoadedRun, h: Tensor, rate: float, known: dict[float, Tensor]) -> Tensor:
    """Return which inputs look like no known class at a rate, (N,); each rate is computed once a batch."""
    if rate not in known:
        score, limit = loaded.familiarity(rate)
        known[rate] = score(h) < limit
    return known[rate]


def _describe(loaded: LoadedRun, model: Model, batch: _Batch) -> list[Answer]:
    """Return what every answer says; one tensor operation for each field, since batches are large."""
    rule, parts = batch.rule, batch.parts
    column = batch.predicted if model.classes else torch.zeros_like(batch.predicted)
    mixed = rule.read(parts.residuals)  # (N, K, C)
    own = mixed.gather(-1, column[:, None, None].expand(-1, mixed.shape[1], 1))[..., 0]  # (N, K)
    base_score = rule.read(parts.base).gather(-1, column[:, None])[:, 0]
    fields = zip(
        batch.predicted.tolist(),
        predicted_classes(parts.base).tolist(),
        batch.weights.tolist(),
        (batch.weights * own).tolist(),
        batch.weights.argmax(-1).tolist(),
        base_score.tolist(),
        batch.radius.tolist(),
        strict=True,
    )
    return [
        {
            "answer": loaded.label(predicted),
            "range": model.domain_of_answer(predicted),
            "base": loaded.label(base),
            "expert": batch.names[first],
            "weights": dict(zip(batch.names, weights, strict=True)),
            "base_score": score if rule.keeps_base else None,
            "contributions": dict(zip(batch.names, contributions, strict=True)),
            "radius": radius,
        }
        for predicted, base, weights, contributions, first, score, radius in fields
    ]


def _why(batch: _Batch, row: int, label: str) -> str | None:
    """Return why no router can change an answer; None where some router can."""
    if float(batch.radius[row]) < 1:
        return None
    one = batch.parts.only(slice(row, row + 1))
    return why_safe(batch.rule, one, int(batch.predicted[row]), batch.names, label)


def _detail(loaded: LoadedRun, batch: _Batch, row: int) -> dict[str, Any]:
    """Return scores from which the answer to any weights follows: `offset + Σ_k w_k · experts_k`, exactly."""
    rule, one = batch.rule, batch.parts.only(slice(row, row + 1))
    predicted = int(batch.predicted[row])
    regression = one.base.shape[-1] == 1
    columns = [0] if regression else reachable_classes(rule, one, predicted)
    offset = rule.read(one.base)[0] if rule.keeps_base else torch.zeros_like(one.base[0])
    mixed = rule.read(one.residuals)[0]  # (K, C)
    return {
        "regression": regression,
        "region": rule.adversary,
        "classes": [] if regression else [loaded.label(column) for column in columns],
        "all_classes": regression or len(columns) == one.base.shape[-1],
        "predicted": predicted if regression else columns.index(predicted),
        "offset": offset[columns].tolist(),
        "experts": mixed[:, columns].tolist(),
    }


def _worst(loaded: LoadedRun, batch: _Batch, row: int, epsilon: float) -> dict[str, Any]:
    one, weights = batch.parts.only(slice(row, row + 1)), batch.weights[row : row + 1]
    worst = worst_router(batch.rule, one, weights, epsilon)
    predicted = int(certify(batch.rule, one, worst).predicted[0])
    answer = loaded.label(predicted)
    named = dict(zip(batch.names, worst[0].tolist(), strict=True))
    return {"epsilon": epsilon, "weights": named, "answer": answer, "changed": predicted != int(batch.predicted[row])}


# --- answers through an extension


def _answer_extended(loaded: LoadedRun, model: Model, queries: Sequence[Query]) -> list[list[Answer]]:
    """Return the answers of a run with an extension; queries with equal options are answered together."""
    extension, module = extension_of(loaded.config), loaded.extension
    assert extension is not None
    results: list[list[Answer]] = [[] for _ in queries]
    together: dict[Options, list[int]] = {}
    for index, query in enumerate(queries):
        if query.options.abstain is not None:
            raise RedxError(f"A run with a {extension.NAME} knows no abstention; leave out abstain.")
        together.setdefault(query.options, []).append(index)
    for options, indices in together.items():

        def ask(inputs: Sequence[Any], options: Options = options) -> list[Answer]:
            return _answer_rows(loaded, model, list(inputs), [options] * len(inputs))

        same = [queries[index] for index in indices]
        inputs = [value for query in same for value in query.inputs]
        answers = extension.answer(module, inputs, ask) if options.steps else ask(inputs)
        for index, part in zip(indices, _divide(answers, same), strict=True):
            results[index] = part
    return results
