"""What a task finds out about the worker that runs it.

Ray sends this module to workers as source, so that it also runs where redx is not installed; it imports nothing of redx
at its top.
"""

from __future__ import annotations

import importlib
import os
import platform


def describe_worker(files: dict[str, str]) -> dict[str, str]:
    """Return facts about a worker: where it is, its versions, and which of the probe files it cannot read.

    Parameters
    ----------
    files
        The expected content of each probe file, by its path.
    """
    facts = {"host": platform.node(), "python": platform.python_version()}
    for path, content in files.items():
        try:
            with open(path, encoding="utf-8") as file:
                seen = file.read(len(content) + 1) == content
        except OSError:
            seen = False
        if not seen or not os.access(os.path.dirname(path), os.W_OK):
            facts["unseen"] = os.path.dirname(path)
            break
    try:
        import torch

        facts |= {"redx": importlib.import_module("redx").__version__, "torch": torch.__version__}
        facts["processor"] = torch.backends.cpu.get_cpu_capability()
    except ImportError as error:
        facts["missing"] = error.name or str(error)
    return facts
