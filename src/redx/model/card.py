"""The model card: what a saved model is, what it was trained on, and how it was evaluated and certified."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Iterable, Sequence
from typing import Any

from redx.composition.rules import RuleId
from redx.config import ModelConfig
from redx.report.short import short_rules, told_base

SHOWN = ("base", "red", "sum", "moe", "uniform", "global")  # rules in the table of figures
TAGS = ["mixture-of-experts", "modular-deep-learning", "certified-robustness"]


def model_card(
    config: ModelConfig,
    classes: tuple[str, ...],
    experts: Iterable[dict[str, Any]],
    figures: dict[str, Any],
    *,
    load: str = "redx.Model.from_pretrained(FOLDER)",
    outputs: str | None = None,
    tags: Sequence[str] = (),
) -> str:
    """Return the README.md of a saved model: a YAML header for the Hugging Face Hub, and Markdown.

    Parameters
    ----------
    config
        Settings of the model.
    classes
        Names of the classes; empty for a regression.
    experts
        The info of every expert, as `expert.json` has it.
    figures
        The summary of the run, as `summary.json` has it; empty for a model without an evaluation.
    load
        The call that loads the model.
    outputs
        What the model gives, in a few words; by default the number of classes.
    tags
        Further tags for the hub.

    Returns
    -------
    str
        The text of the card, from the template `card.md.j2`.
    """
    from huggingface_hub import ModelCard, ModelCardData

    main = config.main_bank("residual")
    source = str(config.trained_as(main) if main in config.banks else main)
    template = importlib.resources.files("redx.model").joinpath("card.md.j2").read_text(encoding="utf-8")
    card = ModelCard.from_template(
        ModelCardData(library_name="redx", tags=[*tags, *TAGS]),
        template_str=template,
        title=_cell(figures.get("task", "A composed model")),
        task=figures.get("task"),
        preset=figures.get("preset"),
        backbone=_cell(config.backbone),
        load=load,
        outputs=outputs or (f"{len(classes)} classes" if classes else "a regression"),
        router=config.router.shape,
        expert_rows=[_expert_row(info, source) for info in experts],
        data=figures.get("data"),
        seeds=figures.get("seeds"),
        rule_rows=[_rule_row(name, figures["rules"][name]) for name in _shown(figures.get("rules", {}))],
        told_base=told_base(figures.get("rules", {})),
    )
    return str(card).rstrip("\n") + "\n"


def _shown(rules: dict[str, Any]) -> list[str]:
    """Return the rules in the table of figures."""
    return [name for name in short_rules(rules) if RuleId.parse(name).rule in SHOWN]


def _expert_row(info: dict[str, Any], source: str) -> list[str]:
    """Return the cells of one expert; `source` is the bank that its accuracy is from."""
    training, metrics = info.get("training", {}), info.get("metrics", {})
    cells = [info["domain"], training.get("examples"), training.get("anchors"), metrics.get("base")]
    cells += [metrics.get(source), info.get("dtype")]
    return list(map(_cell, cells))


def _rule_row(name: str, entry: dict[str, Any]) -> list[str]:
    """Return the cells of one rule: accuracy, under noise, and certified."""
    swap, certified = entry["noise"].get("swap", {}), entry["certified"]
    values = [entry["accuracy"]["mean"], entry["worst_domain"], swap.get("0.5"), swap.get("1")]
    return list(map(_cell, [name, entry.get("shares"), *values, certified.get("0.25"), certified.get("1")]))


def _cell(value: Any) -> str:
    """Return a value as the text of a Markdown table, where no character of a name has a meaning of its own."""
    if value is None:
        return "—"
    if isinstance(value, float):
        return f"{value:.4f}"
    text = " ".join(str(value).split())
    escaped = re.sub(r"[\\|*`\[\]]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)
    return escaped.replace("<", "&lt;")
