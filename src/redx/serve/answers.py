"""Answers of a loaded run to queries of one setting, with what a request asks in addition: detail, worst router."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch

from redx.composition.evaluation import certify
from redx.errors import RedxError
from redx.model.answers import AnswerBatch, answer_features
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
        answers = _answer_rows(model, [value for query in queries for value in query.inputs], options)
    return _divide(answers, queries)


def _divide(answers: list[Answer], queries: Sequence[Query]) -> list[list[Answer]]:
    ends = accumulate((len(query.inputs) for query in queries), initial=0)
    return [answers[start:end] for start, end in pairwise(ends)]


def _answer_rows(model: Model, inputs: list[Any], options: list[Options]) -> list[Answer]:
    """Return the answers of the composed model to single inputs."""
    h = model.embed(inputs)
    batch = answer_features(
        model, h, lambda rule, names: [ordered_weights(wanted, names, rule.adversary) for wanted in options]
    )
    rates = {wanted.abstain for wanted in options if wanted.abstain is not None}
    unfamiliar = {rate: model.features_unfamiliar(h, rate).tolist() for rate in rates}
    abstains = [unfamiliar[one.abstain][row] if one.abstain in unfamiliar else None for row, one in enumerate(options)]
    answers = []
    for row, (wanted, explanation) in enumerate(zip(options, batch.explain(model, abstains), strict=True)):
        answer = explanation.as_dict()
        if wanted.detail:
            answer["detail"] = _detail(model, batch, row)
            answer["why"] = _why(batch, row, str(model.label(int(batch.predicted[row]))))
        if wanted.epsilon is not None and batch.rule.adversary:
            answer["worst"] = _worst(model, batch, row, wanted.epsilon)
        answers.append(answer)
    return answers


def _why(batch: AnswerBatch, row: int, label: str) -> str | None:
    """Return why no router can change an answer; None where some router can."""
    if float(batch.radius[row]) < 1:
        return None
    one = batch.parts.only(slice(row, row + 1))
    return why_safe(batch.rule, one, int(batch.predicted[row]), batch.names, label)


def _detail(model: Model, batch: AnswerBatch, row: int) -> dict[str, Any]:
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
        "classes": [] if regression else [model.label(column) for column in columns],
        "all_classes": regression or len(columns) == one.base.shape[-1],
        "predicted": predicted if regression else columns.index(predicted),
        "offset": offset[columns].tolist(),
        "experts": mixed[:, columns].tolist(),
    }


def _worst(model: Model, batch: AnswerBatch, row: int, epsilon: float) -> dict[str, Any]:
    one, weights = batch.parts.only(slice(row, row + 1)), batch.weights[row : row + 1]
    worst = worst_router(batch.rule, one, weights, epsilon)
    predicted = int(certify(batch.rule, one, worst).predicted[0])
    answer = model.label(predicted)
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
            return _answer_rows(model, list(inputs), [options] * len(inputs))

        same = [queries[index] for index in indices]
        inputs = [value for query in same for value in query.inputs]
        answers = extension.answer(module, inputs, ask) if options.steps else ask(inputs)
        for index, part in zip(indices, _divide(answers, same), strict=True):
            results[index] = part
    return results
