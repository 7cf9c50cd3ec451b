"""What this machine offers: versions, threads, devices, caches, disk."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from redx.errors import RedxError
from redx.io.cache import cache_folder

PACKAGES = ("redx", "torch", "numpy", "safetensors", "pydantic", "typer", "torchmetrics", "matplotlib", "jinja2")


def describe_machine() -> dict[str, str]:
    """All findings by name."""
    import torch

    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    found["cores"] = str(os.cpu_count())
    found["torch threads"] = str(torch.get_num_threads())
    found["devices"] = f"cpu, {torch.cuda.device_count()} cuda" if torch.cuda.is_available() else "cpu"
    folder = cache_folder()
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0
    found["cache"] = f"{folder} ({held / 1e6:.0f} MB)"
    found["disk free"] = f"{shutil.disk_usage(Path.cwd()).free / 1e9:.0f} GB here"
    return found


def check_precision(precision: str, device: str) -> None:
    """Refuse bfloat16 on a processor that breaks down on it."""
    if precision == "bfloat16" and device == "cpu" and not _bfloat16_works():
        raise RedxError(
            "This machine breaks down on bfloat16; set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before the start, "
            "or choose float32."
        )


@lru_cache
def _bfloat16_works() -> bool:
    """Try it in a process of its own: on machines that announce AMX and forbid it, the process is killed."""
    code = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(x, x)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode >= 0
