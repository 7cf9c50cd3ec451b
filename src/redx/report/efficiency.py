"""RQ4: what do experts cost in parameters, time, passes through the backbone and memory?"""

from __future__ import annotations

from redx.report.content import Figure, Line, Panel, Table
from redx.report.document import RunFigures, Section
from redx.report.tables import cost_table, format_value
from redx.report.words import capital, joined

QUESTION = "What does modularity cost in parameters, time, backbone passes and memory?"
NO_STAGES = ("total",)  # of the seconds


def describe(run: RunFigures) -> Section:
    """Return the section of a run."""
    panels = (*_time_panel(run), *_parameters_panel(run))
    caption = "Seconds of every stage, summed over the seeds, and trained parameters by part."
    figures = (Figure("efficiency", caption, panels),) if panels else ()
    tables = (facts_table(run), cost_table(run.summary.get("cost", {})), *run.study_tables("efficiency"))
    return Section(
        "What it costs to train and to ask (RQ4)",
        QUESTION,
        answer(run),
        figures,
        (),
        run.study_figures("efficiency"),
        tables,
    )


def experts_size(run: RunFigures) -> tuple[int, int] | None:
    """Return the parameters of the main experts with their router and ownership scores, and those of the backbone.

    The backbone is the language model where there is one, otherwise the base.
    """
    cost = run.summary.get("cost", {})
    sizes, main = cost.get("parameters", {}), run.main
    if main is None or "base" not in sizes:
        return None
    bank_id = run.config.main_bank("residual" if main == "red" else "standalone")
    trained = str(run.config.trained_as(bank_id)) if bank_id in run.config.banks else str(bank_id)
    own = sum(sizes.get(name, 0) for name in (trained, "router", "ownership"))
    return own, cost.get("backbone_parameters") or sizes["base"]


def passes(run: RunFigures) -> tuple[int, int] | None:
    """Return passes through the backbone here and in a loop on raw text; None where no texts are read."""
    counted = run.summary.get("cost", {}).get("passes") or run.summary.get("study", {}).get("passes")
    if not counted:
        return None
    here, loop = counted.values()
    return here, loop


def answer(run: RunFigures) -> str:
    """Return the figures of cost in one sentence."""
    cost, sentences = run.summary.get("cost", {}), []
    if (sizes := experts_size(run)) and sizes[1]:
        whole = "the backbone" if cost.get("backbone_parameters") else "the base"
        ratio = sizes[0] / sizes[1]
        share = f"{ratio:.2%} of {whole}" if ratio <= 1 else f"{ratio:,.0f} times as many as {whole}"
        sentences.append(f"experts, scores and router have {sizes[0]:,} parameters, {share}")
    if composing := cost.get("composing"):
        sentences.append(f"composing adds {composing['share']:.2%} to the time of a pass through the backbone")
    if (counts := passes(run)) and counts[0]:
        ratio = f"{counts[1] / counts[0]:.0f} times fewer than a loop on raw text"
        sentences.append(f"the backbone reads {counts[0]:,} texts, {ratio}")
    if memory := cost.get("peak_memory_mb"):
        sentences.append(f"the run needs {memory:,.0f} MB")
    return f"{capital(joined(sentences))}." if sentences else ""


def facts_table(run: RunFigures) -> Table:
    """Return the table of sizes, passes and the time of composing."""
    rows: list[tuple[str, str]] = []
    if sizes := experts_size(run):
        rows += [("parameters of experts, scores and router", f"{sizes[0]:,}")]
        rows += [("parameters of the frozen backbone, or of the base", f"{sizes[1]:,}")]
    if counts := passes(run):
        rows += [("texts read by the backbone", f"{counts[0]:,}"), ("… in a loop on raw text", f"{counts[1]:,}")]
    composing = run.summary.get("cost", {}).get("composing")
    if composing:
        batch = f"{composing['examples']} examples, {composing['experts']} experts"
        rows += [(f"seconds in the backbone ({batch})", format_value(composing["backbone_seconds"]))]
        rows += [("seconds in experts, router and rule", format_value(composing["composing_seconds"]))]
        rows += [("share that composing adds", f"{composing['share']:.2%}")]
    note = (
        "A loop that trains on raw text sends every example of every epoch through the backbone; here every distinct "
        "text goes through it once. Seconds are medians of alternating repetitions."
    )
    return Table("Cost beside the backbone", ("what", "amount"), tuple(rows), note)


def _time_panel(run: RunFigures) -> tuple[Panel, ...]:
    seconds = run.summary.get("cost", {}).get("seconds", {})
    stages = {name: value for name, value in seconds.items() if name not in NO_STAGES and value >= 0.005}
    if not stages:
        return ()
    total = sum(stages.values())
    longest = max(stages, key=lambda name: stages[name])
    title = f"Stage {longest} took {stages[longest] / total:.0%} of {total:,.1f} seconds"
    lines = (Line("seconds", tuple(stages.values()), tuple(map(float, range(len(stages))))),)
    notes = tuple(f"{value:,.1f} s" for value in stages.values())
    return (Panel(title, "seconds", "", lines, rows=tuple(stages), notes=notes, bars=True),)


def _parameters_panel(run: RunFigures) -> tuple[Panel, ...]:
    copies = {
        str(bank_id) for bank_id, bank in run.config.banks.items() if bank.experts_of
    }  # of experts trained elsewhere
    counted = run.summary.get("cost", {}).get("parameters", {})
    sizes = {name: size for name, size in counted.items() if name not in copies}
    if not sizes:
        return ()
    largest = max(sizes, key=lambda name: sizes[name])
    title = f"The largest trained part is {largest} with {sizes[largest]:,} parameters"
    lines = (Line("parameters", tuple(map(float, sizes.values())), tuple(map(float, range(len(sizes))))),)
    notes = tuple(f"{value:,}" for value in sizes.values())
    return (Panel(title, "trained parameters", "", lines, rows=tuple(sizes), notes=notes, bars=True),)
