"""Let every command read hostile files of at most 50 MB; print the memory that it takes, and how it ends.

`python -m faults.memory [WORD…]`, with `src` and `tests` on the path; with words, only the files or commands that have
one of them in their names. Exit code 1 if a command takes 2 GB or more, ends with another code than 0 and 2 (and 1 of
`verify`), or prints a traceback.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from faults.bomb_list import all_bombs
from faults.bombs import MOST, Bomb

LIMIT = 2 * 10**9  # bytes of memory of one command
CEILING = 6 * 10**9  # where the system refuses more memory, so that a bomb does not stop the machine
SECONDS = 240
# A process of its own starts the command, since Linux counts the memory of the parent before the command begins.
LAUNCH = """
import resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]),) * 2)
code = subprocess.run([sys.executable, "-m", "redx", *sys.argv[2:]], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def prepare(folder: Path) -> None:
    """Make a run on features, a run on texts and a tiny language model, in a process of its own."""
    code = """
import sys
from pathlib import Path
import redx
from helpers.language_models import save_qwen3
from helpers.own_data import draw_clouds, text_records, write_arrays, write_table
from helpers.runs import run_on_clouds
from redx.io.signing import make_key
from redx.runs.integrity import sign_folder
from redx.runs.kit import write_kit
folder = Path(sys.argv[1])
save_qwen3(folder / "lm")
run_on_clouds(folder / "run", write_arrays(folder / "run.npz", **draw_clouds()))
write_kit(folder / "run", folder / "kit.zip")
make_key(folder / "me.key")
sign_folder(folder / "run", folder / "me.key")
table = write_table(folder / "texts.jsonl", text_records())
redx.run("jsonl", "quick", out=folder / "texts", file=str(table), table={"file": str(table), "domain": "domain"},
         backbone=str(folder / "lm"), epochs={"base": 1, "experts": 1, "router": 1}, study="none")
"""
    folder.mkdir()
    subprocess.run(
        [sys.executable, "-c", code, str(folder)], check=True, capture_output=True, cwd=folder, env=environment()
    )


def environment() -> dict[str, str]:
    """Return the environment of a command: one thread, and a cache of its own."""
    import redx

    source, tests = Path(redx.__file__).parents[1], Path(__file__).parents[1]
    return os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{tests}", "OMP_NUM_THREADS": "1", "REDX_CACHE": "cache"}


def measure(words: list[str], folder: Path, ceiling: int = CEILING) -> tuple[int, int, str]:
    """Run a command in a folder; return its exit code, its peak of memory in bytes, and what it printed as errors."""
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, str(ceiling), *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        errors="replace",
    )
    code, peak = map(int, done.stdout.split())
    return code, peak, done.stderr


def try_bomb(bomb: Bomb, template: Path, folder: Path) -> tuple[list[str], str]:
    """Write a hostile file into a copy of the template and let its command read it; return a row and what is bad."""
    shutil.copytree(template, folder)
    path = folder / bomb.file
    path.parent.mkdir(exist_ok=True)
    write_apart(bomb, path)
    size = sum(file.stat().st_size for file in path.rglob("*")) if path.is_dir() else path.stat().st_size
    target = bomb.file.removesuffix("/expert.json").removesuffix("/expert.safetensors")
    began = time.monotonic()
    try:
        code, peak, errors = measure(bomb.words.format(target).split(), folder)
    except subprocess.TimeoutExpired:
        code, peak, errors = -1, 0, "took too long"
    shutil.rmtree(folder)
    verb = " ".join(word for word in bomb.words.split()[:2] if word.isalpha())
    bad = [f"{peak / 1e6:,.0f} MB"] if peak >= LIMIT else []
    # `verify` answers with 1 where a file differs
    bad += [f"exit code {code}"] if code not in (0, 2) and (code, verb) != (1, "verify run") else []
    bad += ["the command was not understood"] if "Usage:" in errors else []
    bad += ["a traceback"] if "Traceback" in errors else []
    bad += [f"a file of {size:,} bytes"] if size > MOST else []
    row = [bomb.name, Path(bomb.file).name, verb, f"{size:,}", f"{peak / 1e6:,.0f}", str(code)]
    last = " ".join(errors.split())[-300:]
    return [*row, f"{time.monotonic() - began:.0f}"], f"{', '.join(bad)}: {last}" if bad else ""


def write_apart(bomb: Bomb, path: Path) -> None:
    """Write a hostile file in a forked process, whose memory is gone afterwards."""
    if not (child := os.fork()):
        code = 1
        try:
            bomb.write(path)
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError(f"{bomb.name} could not be written")


def main(words: list[str]) -> int:
    """Try all hostile files, print a table, and return the number of bad ones."""
    line = "{:<30}{:<20}{:<15}{:>12}{:>9}{:>6}{:>9}"
    print(line.format("file", "", "command", "bytes", "peak MB", "exit", "seconds"), flush=True)
    faults = []
    with tempfile.TemporaryDirectory(prefix="redx-memory-") as scratch:
        template = Path(scratch) / "template"
        prepare(template)
        for bomb in all_bombs():
            if words and not any(word in f"{bomb.name} {bomb.file} {bomb.words}" for word in words):
                continue
            row, bad = try_bomb(bomb, template, Path(scratch) / "case")
            print(line.format(*row), "BAD" if bad else "", flush=True)
            faults += [f"{row[0]}, {row[1]}, {row[2]}: {bad}"] if bad else []
    print("\n" + ("\n".join(faults) or f"all below {LIMIT / 1e6:,.0f} MB, exit code 0 or 2, no traceback"))
    return len(faults)


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
