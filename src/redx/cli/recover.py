"""The verb `recover`: complete a change of a run that was interrupted."""

from __future__ import annotations

from redx.cli.common import AsJson, Folder, print_json, say


def recover(folder: Folder, as_json: AsJson = False) -> None:
    """Complete a change of a run's experts that was interrupted after it had been committed.

    Every verb that changes the run does this too; verbs that only read refuse the run until it is done.

    Example: `redx recover runs/toy`
    """
    from redx.runs.folder import recover_run

    completed = [str(path) for path in recover_run(folder)]
    if as_json:
        return print_json({"completed": completed})
    say(*(f"completed a change of {path}" for path in completed) if completed else (f"{folder} is complete",))
