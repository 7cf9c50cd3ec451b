"""Scores of confidence compared: how much clean accuracy each leaves at a risk, on held-out training queries.

python benchmarks/scores.py --data-dir FOLDER --out FOLDER --seed 0 --seed 1

The experts of `intents` are trained on 70 training queries of every intent. The other 30 are divided at random, twenty
times: a tenth (or a third) to fit a score that is learned, half of the rest to calibrate, half to measure. Neither
validation nor test queries of CLINC150 are used. The output is a table of accuracies, means over divisions and seeds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from redx.composition import certificate
from redx.composition.confidence import answer_log_odds, confidences, contest
from redx.composition.evaluation import predict
from redx.composition.parts import Cutoffs, Parts, predicted_classes
from redx.composition.risk import harm_thresholds, risk_cutoff
from redx.composition.rules import get_rule
from redx.config import BankId
from redx.data.dataset import Data
from redx.runs.folder import load_seed
from redx.runs.plans import train_seed
from redx.runs.presets import configure
from redx.seeding import generator
from redx.tasks import get_task
from redx.training.features import embed_split

RISKS = (0.02, 0.01, 0.005, 0.002)
DIVISIONS = 20
TRAINED = 70  # training queries of every intent; the others are held out
RED = get_rule("red")
SPANS = (4.0, 16.0, 64.0)  # of confidence, over which a shrunk residual grows from zero to its full size


@dataclass(frozen=True)
class Held:
    """The outputs of trained experts on held-out queries, and the experts' ownership scores, (N, K)."""

    parts: Parts
    ownership: Tensor

    @cached_property
    def answers(self) -> Tensor:
        """The answer of every expert, (N, K)."""
        return predicted_classes(self.parts.base[:, None] + self.parts.residuals)

    @cached_property
    def contest(self) -> Tensor:
        """The confidences of the score `contest`, (N, K)."""
        return confidences("contest", self.parts.base, self.parts.residuals, self.ownership)

    @cached_property
    def features(self) -> Tensor:
        """What is known about every answer of an expert, (N, K, F)."""
        parts, logits = self.parts, self.parts.base[:, None] + self.parts.residuals
        base, own = answer_log_odds(parts.base)[:, None], answer_log_odds(logits)
        of_base = predicted_classes(parts.base)[:, None, None].expand(*self.answers.shape, 1)
        lead = logits.amax(-1) - logits.gather(-1, of_base)[..., 0]  # of its answer over the base's
        lag = parts.base.amax(-1, keepdim=True) - parts.base.gather(-1, self.answers)  # of the base's answer over its
        size = parts.residuals.norm(dim=-1)
        return torch.stack([contest(self.ownership), self.ownership, own, base.expand_as(own), lead, lag, size], -1)

    @cached_property
    def outcomes(self) -> tuple[Tensor, Tensor]:
        """Which answers of experts contradict the base and matter, (N, K), and which of these help, (N, K)."""
        of_base = predicted_classes(self.parts.base)[:, None]
        right, base_right = (answers == self.parts.true_labels()[:, None] for answers in (self.answers, of_base))
        routed = torch.nn.functional.one_hot(self.parts.gates.argmax(-1), self.parts.experts).bool()
        helps = right & ~base_right & routed  # an expert that the router does not choose helps nobody
        return (self.answers != of_base) & (helps | base_right), helps

    @cached_property
    def harmful(self) -> Tensor:
        """Which experts make a base that is right lose, if a router chooses them: (N, K)."""
        alone = [
            replace(self.parts.keep([k]), confidences=torch.zeros(len(self.parts), 1))
            for k in range(self.parts.experts)
        ]
        return torch.stack([harm_thresholds(RED, parts).isfinite() for parts in alone], 1)

    @cached_property
    def needed(self) -> Tensor:
        """The share of an expert's residual that makes a base that is right lose: (N, K)."""
        own = certificate.margins(self.parts.base, self.parts.true_labels())[:, None]  # (N, 1, C)
        vertex = certificate.margins(
            self.parts.base[:, None] + self.parts.residuals, self.parts.true_labels()
        )  # (N, K, C)
        return torch.where(vertex < 0, own / (own - vertex), torch.inf).amin(-1)


Score = Callable[[Held, Tensor], Tensor]  # all queries, and the rows to fit on -> confidences of all queries (N, K)


def train_and_hold_out(data_dir: Path | None, out: Path, seed: int) -> Held:
    """Train the experts of `intents` without 30 queries of every intent, and return their outputs on these."""
    config = configure("intents", run="red", data_dir=data_dir and str(data_dir), seeds=(seed,))
    # standard experts under risk control alone: what is compared needs no other bank
    kept = ("residual/anchored", "residual/risk")
    banks = {bank_id: bank for bank_id, bank in config.banks.items() if str(bank_id) in kept}
    config = config.model_copy(update={"banks": banks, "main": {"residual": "risk"}, "average": False})
    data = get_task("intents").load(config, seed)
    draw, mask = generator(seed, "held out"), torch.zeros(len(data.train), dtype=torch.bool)
    for label in range(len(data.classes)):
        rows = torch.nonzero(data.train.labels == label)[:, 0]
        mask[rows[torch.randperm(len(rows), generator=draw)[TRAINED:]]] = True
    held = data.train.only(torch.nonzero(mask)[:, 0])
    shortened = Data(
        data.train.only(torch.nonzero(~mask)[:, 0]), held, held, data.domains, data.classes, data.split, 0.0
    )
    folder = out / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    train_seed(config, shortened, seed, folder)
    model = load_seed(folder, config)
    features = embed_split(config, model.base, held)
    parts = model.parts_of(features.inputs, BankId("residual", "anchored"), features.labels, features.domains)
    return Held(parts, model.experts.ownership_scores(features.inputs))


# --- scores


def of_name(name: str) -> Score:
    """Return a score of `redx.composition.confidence`."""
    return lambda held, rows: confidences(name, held.parts.base, held.parts.residuals, held.ownership)


def twice_the_gain(held: Held, rows: Tensor) -> Tensor:
    """Return contest and twice the gain."""
    return held.contest + of_name("gain")(held, rows)


def tempered(held: Held, rows: Tensor) -> Tensor:
    """Return contest and gain after ownership scores, the experts' and the base's answers were calibrated."""
    parts, fit, ownership = held.parts, held.parts.only(rows), held.ownership.clone()
    for k in range(parts.experts):
        slope, offset = _log_odds(held.ownership[rows, k, None], fit.domains == k, 1.0)
        ownership[:, k] = held.ownership[:, k] * slope[0] + offset
    own = fit.base + fit.residuals[torch.arange(len(fit)), fit.domains]
    experts, base = _temperature(own, fit.true_labels()), _temperature(fit.base, fit.true_labels())
    answers = answer_log_odds((parts.base[:, None] + parts.residuals) / experts)
    return contest(ownership) + answers - answer_log_odds(parts.base / base)[:, None]


def learned(held: Held, rows: Tensor) -> Tensor:
    """Return logistic regression on the features of an expert's answer: does it help, or does it do harm?"""
    chosen, helps = (values[rows] for values in held.outcomes)
    inputs = held.features[rows][chosen]
    mean, scale = inputs.mean(0), inputs.std(0) + 1e-3
    weights, _ = _log_odds((inputs - mean) / scale, helps[chosen], 0.1)
    return (held.features - mean) / scale @ weights


def with_offsets(of: str) -> Score:
    """Return contest with an offset, learned in the same way, for every `expert` or every `class` of its answer."""

    def score(held: Held, rows: Tensor) -> Tensor:
        experts, classes = held.parts.experts, held.parts.base.shape[1]
        index = torch.arange(experts).expand_as(held.answers) if of == "expert" else held.answers
        chosen, helps = (values[rows] for values in held.outcomes)
        known = held.contest[rows][chosen]
        hot = torch.nn.functional.one_hot(index[rows][chosen], experts if of == "expert" else classes)
        inputs = torch.cat([known[:, None] / known.std(), hot.float()], 1)
        weights, _ = _log_odds(inputs, helps[chosen], 1.0)
        return held.contest / known.std() * weights[0] + weights[1:][index]

    return score


def _log_odds(inputs: Tensor, targets: Tensor, strength: float) -> tuple[Tensor, float]:
    """Return weights and bias of a logistic regression; `strength` is scikit-learn's C."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=strength, max_iter=500).fit(inputs.numpy(), targets.numpy())
    return torch.from_numpy(model.coef_[0]).float(), float(model.intercept_[0])


def _temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature from 0.25 to 4 with the smallest cross-entropy."""
    grid = torch.logspace(-2, 2, 33, base=2.0)
    losses = torch.stack([torch.nn.functional.cross_entropy(logits / value, labels) for value in grid])
    return float(grid[losses.argmin()])


TENTH, THIRD = 0.1, 1 / 3  # share of the held-out queries that a score is fitted on; None: nothing is fitted
SCORES: dict[str, tuple[Score, float | None]] = {
    **{name: (of_name(name), None) for name in ("ownership", "answer", "both", "gain", "all", "contest")},
    "contest and twice the gain": (twice_the_gain, None),
    "contest, calibrated (a tenth)": (tempered, TENTH),
    "contest, calibrated (a third)": (tempered, THIRD),
    "learned (a tenth)": (learned, TENTH),
    "learned (a third)": (learned, THIRD),
    "contest, offset by expert (a tenth)": (with_offsets("expert"), TENTH),
    "contest, offset by expert (a third)": (with_offsets("expert"), THIRD),
    "contest, offset by class (a tenth)": (with_offsets("class"), TENTH),
    "contest, offset by class (a third)": (with_offsets("class"), THIRD),
}


# --- accuracy at a risk


Thresholds = Callable[[Held, Tensor], Tensor]  # all queries and their confidences -> the threshold of every query
Cut = Callable[[Parts, Tensor, float], Parts]  # parts, confidences and a cut-off -> what is composed


def silenced_thresholds(held: Held, sure: Tensor) -> Tensor:
    """Return the thresholds where an expert below the cut-off does not contribute, as `harm_thresholds` does."""
    return sure.masked_fill(~held.harmful, -torch.inf).amax(-1)


def silence(parts: Parts, sure: Tensor, cutoff: float) -> Parts:
    """Return the record without the experts below the cut-off."""
    return replace(parts, confidences=sure, cutoffs=Cutoffs(cutoff, cutoff))


def shrink(span: float) -> Cut:
    """Return a cut that scales a residual by (confidence - cut-off) / span, from 0 to 1.

    The harm falls with the cut-off as before: a base that is right loses to expert k exactly where its factor reaches
    the smallest factor that makes the label lose, and a larger cut-off lowers every factor.
    """

    def cut(parts: Parts, sure: Tensor, cutoff: float) -> Parts:
        factors = ((sure - cutoff) / span).clamp(0, 1)
        return replace(parts, residuals=parts.residuals * factors[..., None])

    return cut


def shrunk_thresholds(held: Held, sure: Tensor, span: float) -> Tensor:
    """Return the largest cut-off at which some router does harm with shrunk residuals, (N,)."""
    return (sure - span * held.needed).masked_fill(~held.harmful, -torch.inf).amax(-1)


def accuracy(parts: Parts) -> float:
    """Return the accuracy of `red` with the trained router."""
    return float((predict(RED, parts, RED.weights(parts)) == parts.labels).double().mean())


def compare(held: Held) -> dict[str, list[float]]:
    """Return the accuracy at every risk by score, the mean over the divisions; the last entry has no cut-off."""
    methods: dict[str, tuple[Score, float | None, Thresholds, Cut]] = {
        name: (score, share, silenced_thresholds, silence) for name, (score, share) in SCORES.items()
    }
    for span in SPANS:
        of_span: Thresholds = partial(shrunk_thresholds, span=span)
        methods[f"contest, shrunk over {span:g}"] = (of_name("contest"), None, of_span, shrink(span))
    draw, count = generator(0, "divisions"), len(held.parts)
    orders = [torch.randperm(count, generator=draw) for _ in range(DIVISIONS)]
    free = sum(accuracy(held.parts.only(order[count // 3 :].chunk(2)[1])) for order in orders) / DIVISIONS
    means: dict[str, list[float]] = {}
    for name, (score, share, thresholds_of, cut) in methods.items():
        total = torch.zeros(len(RISKS))
        sure = score(held, orders[0][: round((share or 0) * count)])
        thresholds = thresholds_of(held, sure)
        for order in orders:
            if share is not None:
                sure = score(held, order[: round(share * count)])
                thresholds = thresholds_of(held, sure)
            calibration, test = order[count // 3 :].chunk(2)  # the same for all scores
            parts, confident = held.parts.only(test), sure[test]
            cutoffs = [risk_cutoff(thresholds[calibration], risk) for risk in RISKS]
            total += torch.tensor([accuracy(cut(parts, confident, cutoff)) for cutoff in cutoffs])
        means[name] = [*(total / DIVISIONS).tolist(), free]
        print(name, [round(mean, 4) for mean in means[name]], file=sys.stderr, flush=True)
    return means


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder for the trained experts; used again if there")
    parser.add_argument("--seed", type=int, action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    by_seed = []
    for seed in options.seed or [0]:
        held = train_and_hold_out(options.data_dir, options.out, seed)
        chosen, helps = held.outcomes
        print(
            f"seed {seed}: {int(chosen.sum())} answers of experts matter, {int(helps.sum())} of them help", flush=True
        )
        by_seed.append(compare(held))
    print("| score | " + " | ".join(f"risk {risk:g}" for risk in RISKS) + " |\n|---|" + "---:|" * len(RISKS))
    means: list[float] = []
    for name in by_seed[0]:
        means = [sum(column) / len(by_seed) for column in zip(*(one[name] for one in by_seed), strict=True)]
        print(f"| {name} | " + " | ".join(f"{value:.4f}" for value in means[:-1]) + " |")
    print(f"without a cut-off: {means[-1]:.4f}")


if __name__ == "__main__":
    main()
