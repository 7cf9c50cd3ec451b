"""Transactions: before the journal nothing has changed, after it the next reader completes the change."""

from pathlib import Path

import pytest

from redx.errors import RedxError
from redx.io.files import write_json
from redx.runs.transaction import JOURNAL, SCRATCH, Transaction, consistently, edit, read_version, recover


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a seed with a file and a folder."""
    seed = tmp_path / "seed-0"
    (seed / "experts" / "a").mkdir(parents=True)
    (seed / "file").write_text("old")
    (seed / "experts" / "a" / "weights").write_text("a")
    return seed


def change(folder: Path, error: type[BaseException] | None = None) -> None:
    """Make a change, or fail while it is prepared."""
    with edit(folder) as transaction:
        prepare(transaction)
        if error:
            raise error("stop")


def prepare(transaction: Transaction) -> None:
    """Replace the file, move one expert out and write another."""
    for name, content in {"file": "new", "experts/b/weights": "b"}.items():
        path = transaction.new(name if name == "file" else "experts/b") / ("" if name == "file" else "weights")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    transaction.move("experts/a", "removed/a")


def content(folder: Path) -> dict[str, str]:
    """Return all files, without the count of changes."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "state.json"]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


AFTER = {"experts/b/weights": "b", "file": "new", "removed/a/weights": "a"}


def test_a_change_happens_completely(folder: Path) -> None:
    with edit(folder) as transaction:
        prepare(transaction)
        assert (folder / "file").read_text() == "old"
    assert content(folder) == AFTER
    assert read_version(folder) == 1


@pytest.mark.parametrize("error", [RedxError, KeyboardInterrupt])
def test_an_error_before_the_commit_changes_nothing(folder: Path, error: type[BaseException]) -> None:
    before = content(folder)
    with pytest.raises(error):
        change(folder, error)
    assert content(folder) == before
    assert read_version(folder) == 0


@pytest.mark.parametrize("done", range(4))
def test_a_reader_completes_what_a_killed_writer_committed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """The process dies after the journal and after some of the moves."""
    import redx.runs.transaction as module

    count = 0

    def stop_after(move):  # noqa: ANN001, ANN202
        def stopping(*words) -> None:
            nonlocal count
            if count == done:
                raise KeyboardInterrupt
            count += 1
            move(*words)

        return stopping

    with monkeypatch.context() as patch:
        patch.setattr(module, "_MOVES", {name: stop_after(move) for name, move in module._MOVES.items()})
        with pytest.raises(KeyboardInterrupt):
            change(folder)
    assert (folder / JOURNAL).exists()
    assert consistently(folder.parent, folder, lambda: content(folder)) == AFTER
    assert not (folder / JOURNAL).exists()
    assert not (folder / SCRATCH).exists()


@pytest.mark.parametrize("moves", [[["replace", "../outside"]], [["delete", "file"]], [["move", "file"]], [[]]])
def test_a_journal_that_redx_did_not_write_is_refused(folder: Path, moves: list[list[str]]) -> None:
    before = content(folder)
    write_json(folder / JOURNAL, {"moves": moves})
    with pytest.raises(RedxError, match="damaged"):
        recover(folder)
    (folder / JOURNAL).unlink()
    assert content(folder) == before


def test_a_reader_starts_again_when_the_run_was_changed_meanwhile(folder: Path) -> None:
    reads = []

    def read() -> dict[str, str]:
        if not reads:
            change(folder)
        reads.append(content(folder))
        return reads[-1]

    assert consistently(folder.parent, folder, read) == AFTER
    assert len(reads) == 2
