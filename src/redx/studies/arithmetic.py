"""What arithmetic in words shows beyond the rules: the price of safety, and how rarely the frozen part has to run."""

from __future__ import annotations

from redx.config import Config
from redx.evaluate import Banks
from redx.findings import Study, Table
from redx.model import Model
from redx.records import Data
from redx.studies import safety
from redx.texts import unpack


def study(config: Config, data: Data, models: dict[int, Model], parts: dict[int, Banks]) -> Study:
    """The findings of `safety`, and the forward passes."""
    found = safety.study(config, data, models, parts)
    passes = count_passes(config, data)
    note = (
        "A text through the frozen blocks is one pass. A loop that trains on raw text sends every example of every "
        "epoch through them: base on the shared subset, one bank of experts, router, and once validation and test."
    )
    rows = tuple((name, value) for name, value in passes.items())
    table = Table("Forward passes through the frozen blocks", ("way", "passes"), rows, note)
    return Study(found.facts | {"passes": passes}, (*found.tables, table), found.figures)


def count_passes(config: Config, data: Data) -> dict[str, int]:
    """How often the frozen part had to run, and how often a loop without kept features would have run it."""
    texts = [text for split in (data.train, data.validation, data.test) for text in unpack(split.inputs)]
    epochs = [bank.training.epochs for bank in config.banks.values() if bank.of is None]
    loop = config.base.training.epochs * round(config.base.share * len(data.train))
    loop += (max(epochs) + config.router.training.epochs) * len(data.train)
    return {"here, each distinct text once": len(set(texts)), "a loop on raw text": loop + len(texts) - len(data.train)}
