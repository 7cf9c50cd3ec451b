"""Transactions: before the journal nothing has changed, after it the next writer completes the change."""

import shutil
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from redx.errors import RedxError
from redx.io.files import write_json
from redx.io.folders import Below
from redx.runs.transaction import (
    JOURNAL,
    LOCK,
    SCRATCH,
    Transaction,
    _to_sync,
    consistently,
    edit,
    read_version,
    recover,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a seed with a file and a folder."""
    seed = tmp_path / "seed-0"
    (seed / "experts" / "a").mkdir(parents=True)
    (seed / "file.json").write_text("old")
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
    for place, content in {"file.json": "new", "experts/b": "b"}.items():
        path = transaction.new(place) / ("" if place == "file.json" else "weights")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    transaction.move("experts/a", "removed/a")


def content(folder: Path) -> dict[str, str]:
    """Return all files, without the count of changes."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "state.json"]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


AFTER = {"experts/b/weights": "b", "file.json": "new", "removed/a/weights": "a"}


def test_a_change_happens_completely(folder: Path) -> None:
    with edit(folder) as transaction:
        prepare(transaction)
        assert (folder / "file.json").read_text() == "old"
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
def test_what_a_killed_writer_committed_is_completed_by_the_next_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """The process dies after the journal and after some of the moves; a reader refuses the folder and leaves it."""
    rename, count = Below.rename, 0

    def stopping(below: Below, *words: str) -> None:
        nonlocal count
        if count == done:
            raise KeyboardInterrupt
        count += 1
        rename(below, *words)

    with monkeypatch.context() as patch:
        patch.setattr(Below, "rename", stopping)
        with pytest.raises(KeyboardInterrupt):
            change(folder)
    before = content(folder)
    assert (folder / JOURNAL).exists()
    with pytest.raises(RedxError, match="`redx recover"):
        consistently(folder.parent, folder, lambda: content(folder))
    assert content(folder) == before
    recover(folder)
    assert consistently(folder.parent, folder, lambda: content(folder)) == AFTER
    assert not (folder / JOURNAL).exists()
    assert not (folder / SCRATCH).exists()


def test_a_reader_waits_for_the_writer_that_is_at_work(folder: Path) -> None:
    """The journal is there, and its writer holds the lock: it is about to delete it."""
    write_json(folder / JOURNAL, {"moves": []})
    with FileLock(folder.parent / LOCK, thread_local=False):
        timer = threading.Timer(0.3, (folder / JOURNAL).unlink)
        timer.start()
        assert consistently(folder.parent, folder, lambda: "read") == "read"
        timer.join()


FORGED = (
    ["replace", "../outside"],
    ["replace", "/etc/passwd"],
    ["replace", "experts/../../outside"],
    ["replace", "experts/a/../../../outside"],
    ["replace", ".lock"],
    ["replace", ".journal.json"],
    ["replace", "experts/.hidden"],
    ["replace", "elsewhere/file.json"],
    ["replace", ""],
    ["move", "file.json", "removed/a"],
    ["move", "experts/a", "experts/b"],
    ["move", "experts/a", "removed/../../outside"],
    ["move", "removed/a", "experts/a"],
    ["move", "experts/a"],
    ["delete", "file.json"],
    [],
)


@pytest.mark.parametrize("move", FORGED, ids=repr)
def test_a_journal_that_redx_did_not_write_is_refused(folder: Path, move: list[str]) -> None:
    (folder / SCRATCH / "new").mkdir(parents=True)
    (folder / SCRATCH / "new" / "state.json").write_text("{}")
    write_json(folder / JOURNAL, {"moves": [["replace", "state.json"], move]})
    before = content(folder)
    with pytest.raises(RedxError, match="not a journal of redx"):
        recover(folder)
    assert content(folder) == before


@pytest.mark.parametrize(
    "link", ["experts", ".redx-edit", ".redx-edit/new", ".redx-edit/new/experts", "removed", ".journal.json"]
)
def test_no_link_is_followed_to_complete_a_change(folder: Path, tmp_path: Path, link: str) -> None:
    """Whatever component of a path is a link, what it points to stays as it is."""
    outside = tmp_path / "outside"
    for name in ("new/experts/a", "experts/a", "a"):
        (outside / name).mkdir(parents=True)
        (outside / name / "weights").write_text("mine")
    write_json(outside / "journal.json", {"moves": [["replace", "experts/a"]]})
    before = content(outside)
    (folder / SCRATCH / "new" / "experts" / "a").mkdir(parents=True)
    write_json(folder / JOURNAL, {"moves": [["replace", "experts/a"], ["move", "experts/a", "removed/a"]]})
    target = outside / "journal.json" if link == JOURNAL else outside
    path = folder / link
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    with pytest.raises(RedxError):
        recover(folder)
    assert content(outside) == before


def test_a_seed_folder_that_is_a_link_is_not_entered(folder: Path, tmp_path: Path) -> None:
    write_json(folder / JOURNAL, {"moves": [["move", "experts/a", "removed/a"]]})
    before = content(folder)
    (tmp_path / "seed-1").symlink_to(folder)
    with pytest.raises(RedxError, match="Cannot complete"):
        recover(tmp_path / "seed-1")
    assert content(folder) == before


def test_a_change_holds_only_moves_that_a_journal_may_hold(folder: Path) -> None:
    with pytest.raises(RedxError, match="cannot touch"), edit(folder) as transaction:
        transaction.new("../outside.json")


def test_a_move_that_was_flushed_on_one_side_alone_is_completed(folder: Path) -> None:
    """After a power failure an expert may be in both places; the change leaves it in the new one."""
    shutil.copytree(folder / "experts" / "a", folder / "removed" / "a")
    write_json(folder / JOURNAL, {"moves": [["move", "experts/a", "removed/a"]]})
    recover(folder)
    assert content(folder) == {"file.json": "old", "removed/a/weights": "a"}


def test_a_replaced_expert_of_the_same_name_is_not_moved_away_again(folder: Path) -> None:
    """All moves were made, and the journal was not deleted yet."""
    shutil.copytree(folder / "experts" / "a", folder / "removed" / "a")
    (folder / "experts" / "a" / "weights").write_text("new")
    write_json(folder / JOURNAL, {"moves": [["move", "experts/a", "removed/a"], ["replace", "experts/a"]]})
    recover(folder)
    assert content(folder) == {"experts/a/weights": "new", "file.json": "old", "removed/a/weights": "a"}


def test_a_reader_starts_again_when_the_run_was_changed_meanwhile(folder: Path) -> None:
    reads = []

    def read() -> dict[str, str]:
        if not reads:
            change(folder)
        reads.append(content(folder))
        return reads[-1]

    assert consistently(folder.parent, folder, read) == AFTER
    assert len(reads) == 2


def test_folders_are_flushed_where_a_move_leads_to_before_where_it_came_from() -> None:
    """Otherwise a power failure between the two loses what was moved."""
    moves = [["move", "experts/a", "removed/a"], ["replace", "experts/b"], ["replace", "state.json"]]
    order = _to_sync(moves)
    assert order.index("removed") < order.index("experts") < order.index(".redx-edit/new/experts")
    assert order.index("") < order.index(".redx-edit/new")
