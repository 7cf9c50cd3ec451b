"""The report of a run of adapters: the page of other runs, with perplexity by domain, certificates and costs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redx.adapters.library import AdapterEntry, read_library
from redx.adapters.settings import PRESETS, AdaptersConfig
from redx.adapters.summary import LABELS, table
from redx.errors import RedxError
from redx.io.reading import guarded, is_file, read_json
from redx.report.content import Figure, Line, Panel, Table
from redx.report.document import Report, Section, Source, Summary, Tile
from redx.report.page import publish

MISFIT = "does not hold the settings of a run of adapters"
AT_RISK = "certified at risk"
MERGES = "RED with router against best merge"


def is_adapters_run(folder: Path) -> bool:
    """Return whether a folder holds a run of adapters."""
    path = folder / "config.json"
    return (
        is_file(path) and read_json(path, dict, misfit="does not hold the settings of a run").get("task") == "adapters"
    )


def write_report(folder: Path) -> Path:
    """Write report.html, report.md and figures/*.svg of a finished run of adapters, and return the path of the page.

    Parameters
    ----------
    folder
        The run folder, with summary.json.
    """
    config = read_json(folder / "config.json", AdaptersConfig, misfit=MISFIT)
    if not is_file(folder / "summary.json"):
        raise RedxError(f"The run in {folder} is not finished; repeat its command: {_command(config, folder)}.")
    summary = read_json(folder / "summary.json", dict)
    with guarded(folder / "summary.json", "lacks figures of a report, or has some of the wrong kind", "repeat the run"):
        return publish(describe(config, summary, read_library(folder).adapters, folder), folder / "report.html")


def describe(config: AdaptersConfig, summary: Summary, adapters: Sequence[AdapterEntry], folder: Path) -> Report:
    """Return the content of the report.

    Parameters
    ----------
    config, summary
        Settings and summary of the run.
    adapters
        The adapters of its library.
    folder
        The run folder, which the command names.
    """
    sections = (_performance(summary), _certificates(summary), _costs(summary, adapters))
    meanings = tuple((way, words) for way, words in LABELS.items() if way in summary["ways"])
    appendix = (
        Section("Ways of composing", more_tables=(Table("", ("way", "meaning"), meanings),)),
        Section("Merges of peft", more_tables=(_merges(summary),)),
    )
    return Report(
        title=f"adapters, {config.preset}",
        verdict=verdict(summary),
        tiles=_tiles(summary),
        sections=sections,
        appendix=tuple(section for section in appendix if not section.is_empty),
        sources=(_source(config, summary, folder),),
    )


def verdict(summary: Summary) -> str:
    """Return the result of a run in one sentence."""
    red, base, own = (_mean(summary, way, "perplexity") for way in ("router", "base", "own adapter"))
    right, worst = _mean(summary, "base", "accuracy"), summary["certified"][AT_RISK]["1"]
    cost = "no less than the base" if worst >= right else f"{right - worst:.4f} less than the base"
    return (
        f"RED with the trained router has a mean perplexity of {red:.3f} (base {base:.3f}, own adapter {own:.3f}); "
        f"with the cut-off it predicts {worst:.4f} of the next tokens under the worst router, {cost} "
        f"(promised: at most {summary['risk']['risk']:.4g} less, on average over documents)."
    )


def _mean(summary: Summary, way: str, figure: str) -> float:
    return summary["ways"][way][figure]["mean"]


def _tiles(summary: Summary) -> tuple[Tile, ...]:
    """Return the four figures that carry the verdict."""
    base = _mean(summary, "base", "accuracy")
    harm, risk = summary.get("harm", {}).get("any router at risk"), summary["risk"]["risk"]
    state = "" if harm is None else "good" if harm["mean"] <= risk else "bad"
    word = {"": "not measured on the test documents", "good": "kept", "bad": "exceeded on the test documents"}[state]
    perplexities = (
        f"base {_mean(summary, 'base', 'perplexity'):.3f}, own {_mean(summary, 'own adapter', 'perplexity'):.3f}"
    )
    return (
        Tile("mean perplexity", (("", f"{_mean(summary, 'router', 'perplexity'):.3f}"),), perplexities),
        Tile("next tokens predicted", (("", f"{_mean(summary, 'router', 'accuracy'):.4f}"),), f"base {base:.4f}"),
        Tile("any router, with cut-off", (("", f"{summary['certified'][AT_RISK]['1']:.4f}"),), f"base {base:.4f}"),
        Tile(
            "harm of the worst router",
            (("", "—" if harm is None else f"{harm['mean']:.4f}"),),
            f"promised ≤ {risk:.4g}: {word}",
            state,
        ),
    )


def _performance(summary: Summary) -> Section:
    return Section(
        "Perplexity by domain",
        "Do composed adapters predict text better than the base and than peft's merges?",
        describe_gains(summary),
        tables=(table(summary, "perplexity"),),
        more_tables=(table(summary, "accuracy"),),
    )


def describe_gains(summary: Summary) -> str:
    """Return in one sentence how the perplexities of adapters, RED and the best merge of peft compare."""
    targets = summary["targets"]
    gain, merge = targets["own adapter against base, smallest gain of a domain"], targets[MERGES]
    beside_merge = "" if merge is None else f" and {_change(-merge)} that of peft's best merge"
    return (
        f"RED's mean perplexity is {_change(targets['RED with router against own adapter'])} that of the own adapters"
        f"{beside_merge}; where it gains least, the own adapter's perplexity is {_change(-gain)} the base's."
    )


def _change(share: float) -> str:
    """Return a relative change in words: 12.3 % below or above."""
    return f"{abs(share):.1%} {'below' if share < 0 else 'above'}".replace("%", " %")


def _certificates(summary: Summary) -> Section:
    risk, certified = summary["risk"], summary["certified"]
    base = _mean(summary, "base", "accuracy")
    epsilons = tuple(map(float, certified["certified"]))
    curves = tuple(Line(kind, epsilons, tuple(curve.values())) for kind, curve in certified.items())
    reference = Line("base", (epsilons[0], epsilons[-1]), (base, base), dashed=True)
    without, worst = (certified[kind]["1"] for kind in ("certified", AT_RISK))
    panel = Panel(
        f"Under any router {worst:.4f} are right with the cut-off, and {without:.4f} without",
        "share ε of routing weight that is moved",
        "next-token accuracy",
        (*curves, reference),
    )
    columns = ("share of routing weight that is moved", *(f"ε = {epsilon}" for epsilon in certified["certified"]))
    rows = tuple((kind, *curve.values()) for kind, curve in certified.items())
    return Section(
        "Any router",
        "How many next tokens are right whatever the router does?",
        f"{worst:.4f} with the cut-off and {without:.4f} without; the base alone predicts {base:.4f}. The cut-off was "
        f"calibrated on {risk['documents']} documents ({risk['tokens']:,} tokens) for a risk of {risk['risk']:.4g}; an "
        f"adapter is active on {risk['active']:.1%} of the test tokens.",
        figures=(Figure("certified", "Certified next-token accuracy of RED with the trained router.", (panel,)),),
        tables=(Table("", columns, rows, "Certified: right under every router within ε."),),
    )


def _costs(summary: Summary, adapters: Sequence[AdapterEntry]) -> Section:
    seconds = summary["seconds"]
    total, size = sum(seconds.values()), sum(entry.parameters for entry in adapters)
    rows = tuple((entry.name, entry.method, entry.rank, entry.parameters) for entry in adapters)
    return Section(
        "Costs",
        "What do the adapters cost?",
        f"{len(adapters)} adapters have {size:,} parameters together; the run took {total:,.0f} seconds.",
        tables=(
            Table("Adapters", ("adapter", "method", "rank", "parameters"), rows),
            Table("Stages", ("stage", "seconds"), tuple(seconds.items())),
        ),
    )


def _merges(summary: Summary) -> Table:
    rows = tuple((method, choice["scale"], choice["loss"]) for method, choice in summary["merges"].items())
    note = "The weight is the same for every adapter and was chosen by the loss of a token on validation documents."
    return Table("", ("method", "chosen weight", "validation loss"), rows, note)


def _source(config: AdaptersConfig, summary: Summary, folder: Path) -> Source:
    documents = ", ".join(f"{name} {count}" for name, count in summary["documents"].items())
    facts = {
        "task": "adapters",
        "preset": config.preset,
        "seed": str(config.seed),
        "backbone": config.backbone,
        "test documents": documents,
        "predicted tokens": f"{summary['tokens']:,}",
    }
    return Source(
        "adapters", facts, _command(config, folder), _unnamed_changes(config), config.model_dump_json(indent=1)
    )


def _options(config: AdaptersConfig) -> dict[str, Any]:
    """Return the settings that are options of `redx run adapters` and have one value, by option."""
    settings = {name: getattr(config, name) for name in ("backbone", "data", "documents", "risk", "seed")}
    return settings | {name: getattr(config.training, name) for name in ("steps", "rank")}


def _command(config: AdaptersConfig, folder: Path) -> str:
    """Return the command that repeats a run."""
    usual = _options(PRESETS.get(config.preset, PRESETS["default"]))
    words = ["redx", "run", "adapters", *(["--train"] if config.train else [])]
    words += [] if config.preset == "default" else ["--preset", config.preset]
    for name, value in _options(config).items():
        words += [] if value == usual[name] else [f"--{name}", str(value)]
    for name in config.domains:
        words += ["--domain", name]
    for name in config.adapters:
        words += ["--adapter", f"{name}=FOLDER"]
    return shlex.join([*words, "--out", str(folder)])


def _unnamed_changes(config: AdaptersConfig) -> list[str]:
    """Return the settings that differ from the preset and that the command does not set."""
    preset = PRESETS.get(config.preset, PRESETS["default"])
    named = {"task", "preset", "train", "domains", "data_hash", "adapters", "training", *_options(config)}
    changed = [name for name in AdaptersConfig.model_fields if name not in named]
    inner = [name for name in type(config.training).model_fields if name not in ("steps", "rank")]
    return [name for name in changed if getattr(config, name) != getattr(preset, name)] + [
        f"training.{name}" for name in inner if getattr(config.training, name) != getattr(preset.training, name)
    ]
