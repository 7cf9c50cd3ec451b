"""What this machine offers: versions, threads, devices, caches, disk."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from pathlib import Path

from redx.fetch import cache

PACKAGES = ("redx", "torch", "numpy", "safetensors", "pydantic", "typer", "torchmetrics", "matplotlib", "jinja2")


def examine() -> dict[str, str]:
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
    folder = cache()
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0
    found["cache"] = f"{folder} ({held / 1e6:.0f} MB)"
    found["disk free"] = f"{shutil.disk_usage(Path.cwd()).free / 1e9:.0f} GB here"
    return found
