"""Progress bars on the terminal, and a note while slow packages are imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redx.errors import printable

NOTE = "loading …"
SLOW = ("torch",)  # packages whose import takes seconds
_noted = False


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

    clear_note()
    columns = (
        TextColumn("{task.description:<28}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(title), total=total)
        yield lambda amount: bar.advance(task, amount)


class LoadingNote:
    """Among the finders of modules: it finds none, and shows a note when a slow package is about to be imported."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Show the note if this is a slow package."""
        global _noted
        if name in SLOW and not _noted and sys.stderr.isatty():
            _noted = True
            sys.stderr.write(f"{NOTE}\r")
            sys.stderr.flush()


def note_loading() -> None:
    """Show a note on the terminal when a slow package is imported, until something else is printed."""
    if not any(isinstance(finder, LoadingNote) for finder in sys.meta_path):
        sys.meta_path.insert(0, LoadingNote())  # type: ignore[arg-type]


def clear_note() -> None:
    """Remove the note from the terminal, if it is there."""
    global _noted
    if _noted:
        _noted = False
        sys.stderr.write("\x1b[K")
        sys.stderr.flush()
