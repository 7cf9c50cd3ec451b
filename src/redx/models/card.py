"""The model card: what a saved model is, what it was trained on, and what it was measured and proven to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redx.config import RunConfig

SHOWN = ("base", "red", "sum", "moe", "uniform", "global")  # rules that the card tells


def model_card(
    config: RunConfig, classes: tuple[str, ...], experts: Iterable[dict[str, Any]], figures: dict[str, Any]
) -> str:
    """README.md of a saved model."""
    lines = [
        f"# {config.task}: base and experts",
        "",
        "A model of [redx](https://pypi.org/project/redx/): one frozen base, experts that were trained apart, and a "
        "router. Load it with `redx.load(FOLDER)`.",
        "",
        f"- task `{config.task}`, preset `{config.preset}`, backbone `{config.backbone}`, seed {config.seeds[0]}",
        f"- {len(classes)} classes" if classes else "- a regression",
        f"- router: {config.router.shape}",
        "",
        "## Experts",
        "",
        "| expert | examples | anchors | base at home | expert at home | cut-off | kept as |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    main = config.main_bank("residual")
    source = str(config.trained_as(main) if main in config.banks else main)
    for facts in experts:
        training, metrics = facts.get("training", {}), facts.get("metrics", {})
        cells = [facts["domain"], training.get("examples"), training.get("anchors"), metrics.get("base")]
        cells += [metrics.get(source), facts.get("ownership", {}).get("cutoff"), facts.get("dtype")]
        lines.append(f"| {' | '.join(map(_show, cells))} |")
    lines += ["", "'At home' is accuracy on held-out examples of its own domain.", ""]
    return "\n".join(lines + _measured(figures)) + "\n"


def _measured(figures: dict[str, Any]) -> list[str]:
    """Data, accuracy, noise and certificates of the run that the model comes from."""
    if not figures:
        return ["## Figures", "", "This model was saved without having been measured."]
    data, rules = figures["data"], figures["rules"]
    lines = [
        "## Data",
        "",
        f"{data['train']:,} examples for training, {data['validation']:,} for validation, {data['test']:,} for test; "
        f"split `{data['split']}`, {data['seen_in_train']:.1%} of the test questions also stand in training.",
        "",
        "## Figures",
        "",
        f"Test split, mean of seeds {', '.join(map(str, figures['seeds']))}, as the run was trained. 'swap 1' sends "
        "every example to a wrong expert; 'certified' is exact accuracy against any router that may move a share ε.",
        "",
        "| rule | accuracy | worst domain | swap 0.5 | swap 1 | certified ε = 0.25 | certified ε = 1 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in SHOWN:
        if entry := rules.get(name):
            swap, certified = entry["noise"].get("swap", {}), entry["certified"]
            cells = [name, entry["accuracy"]["mean"], entry["worst_domain"], swap.get("0.5"), swap.get("1")]
            lines.append(f"| {' | '.join(map(_show, [*cells, certified.get('0.25'), certified.get('1')]))} |")
    return lines


def _show(value: Any) -> str:
    if value is None:
        return "—"
    return f"{value:.4f}" if isinstance(value, float) else str(value).replace("|", "\\|")
