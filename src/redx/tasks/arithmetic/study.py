"""What arithmetic in words shows beyond the rules: the price of safety, and how rarely the frozen part has to run."""

from __future__ import annotations

from itertools import product

from redx.composition.evaluation import Banks
from redx.config import RunConfig
from redx.data.dataset import Data
from redx.data.text import unpack_texts
from redx.models.composed import Model
from redx.report.content import Study, Table
from redx.tasks.studies import safety


def study(config: RunConfig, data: dict[int, Data], models: dict[int, Model], parts: dict[int, Banks]) -> Study:
    """The findings of `safety`, and the forward passes."""
    found = safety.study(config, data, models, parts)
    passes = count_passes(config, data[config.seeds[0]])
    note = (
        "A text through the frozen blocks is one pass. A loop that trains on raw text sends every example of every "
        "epoch through them: base on the shared subset, one bank of experts, router, and once validation and test."
    )
    rows = tuple((name, value) for name, value in passes.items())
    table = Table("Forward passes through the frozen blocks", ("way", "passes"), rows, note)
    facts, tables = found.facts | {"passes": passes}, [*found.tables, table]
    if config.task == "ops":
        steps = ask_everything(models)
        facts |= {"single_steps": steps}
        note = (
            f"All {len(every_step())} additions and subtractions of 1 to 50 with a result of 2 to 100: a chain's steps."
        )
        tables.insert(0, Table("Every step that a chain can ask", ("rule", "accuracy"), tuple(steps.items()), note))
    return Study(facts, tuple(tables), found.figures)


def every_step() -> list[tuple[str, int]]:
    """Every single step that a chain of the papers can ask, with its answer."""
    found = []
    for first, second in product(range(1, 51), repeat=2):
        found += [
            (f"What is {first} plus {second}?", first + second),
            (f"What is {first} minus {second}?", first - second),
        ]
    return [(text, answer) for text, answer in found if 2 <= answer <= 100]


def ask_everything(models: dict[int, Model]) -> dict[str, float]:
    """The share of those that each rule answers right, the mean over the seeds."""
    texts, truth = zip(*every_step(), strict=True)
    shares: dict[str, list[float]] = {}
    for model in models.values():
        for rule in ("red", "red/anchored", "sum", "moe", "uniform", "base", "global"):
            with model.using(rule):
                said = model.predict(texts)
            right = sum(int(one) == other for one, other in zip(said, truth, strict=True))
            shares.setdefault(rule, []).append(right / len(truth))
    return {rule: sum(found) / len(found) for rule, found in shares.items()}


def count_passes(config: RunConfig, data: Data) -> dict[str, int]:
    """How often the frozen part had to run, and how often a loop without kept features would have run it."""
    texts = [text for split in (data.train, data.validation, data.test) for text in unpack_texts(split.inputs)]
    epochs = [bank.training.epochs for bank in config.banks.values() if bank.of is None]
    loop = config.base.training.epochs * round(config.base.share * len(data.train))
    loop += (max(epochs) + config.router.training.epochs) * len(data.train)
    return {"here, each distinct text once": len(set(texts)), "a loop on raw text": loop + len(texts) - len(data.train)}
