"""Progress bars on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redx.errors import printable


@contextmanager
def progress(title: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Show a progress bar inside a `with` block; without a terminal nothing is shown.

    Parameters
    ----------
    title
        Text in front of the bar.
    total
        Amount of work at which the bar is full; None if it is not known.

    Yields
    ------
    callable
        A function that advances the bar by an amount of work.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<28}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(title), total=total)
        yield lambda amount: bar.advance(task, amount)
