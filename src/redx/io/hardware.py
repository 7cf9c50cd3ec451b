"""The machine and its software: versions, threads, devices, cache, disk, and support for bfloat16."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from redx.errors import RedxError
from redx.io.cache import cache_folder

PACKAGES = ("redx", "torch", "numpy", "safetensors", "pydantic", "typer", "torchmetrics")
EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")
NAME = re.compile(r"[\w.-]+")  # of a package at the start of a requirement
DEVELOPMENT = ("dev", "docs")  # extras for work on redx itself


def describe_machine() -> dict[str, str]:
    """Return facts about the machine, as `redx doctor` prints them.

    Returns
    -------
    dict
        Facts by name: versions of Python and packages, cores, threads, devices, size of the cache, free disk space.
    """
    import torch

    facts = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for package in PACKAGES:
        facts[package] = _version(package)
    facts |= describe_extras()
    facts["cores"] = str(os.cpu_count())
    facts["torch threads"] = str(torch.get_num_threads())
    facts["devices"] = f"cpu, {torch.cuda.device_count()} cuda" if torch.cuda.is_available() else "cpu"
    folder = cache_folder()
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0
    facts["cache"] = f"{folder} ({size / 1e6:.0f} MB)"
    facts["disk free"] = f"{shutil.disk_usage(Path.cwd()).free / 1e9:.0f} GB here"
    return facts


def describe_extras() -> dict[str, str]:
    """Return the packages of every extra of redx with their versions, by `extra NAME`.

    Extras are read from the metadata of redx; those for work on redx itself are left out.
    """
    try:
        lines = importlib.metadata.requires("redx") or []
    except importlib.metadata.PackageNotFoundError:  # run from its source, without installation
        lines = []
    extras: dict[str, list[str]] = {}
    for line in lines:
        requirement, _, marker = line.partition(";")
        extra = EXTRA.search(marker)
        name = NAME.match(requirement.strip())
        if extra is None or name is None or extra[1] in DEVELOPMENT or name[0] == "redx":
            continue
        extras.setdefault(f"extra {extra[1]}", []).append(f"{name[0]} {_version(name[0])}")
    return {extra: ", ".join(packages) for extra, packages in extras.items()}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def usable_device(device: str) -> str:
    """Return the device, or `cpu` where there is no CUDA device: a model that was trained on one still loads.

    Parameters
    ----------
    device
        `cpu` or `cuda`.
    """
    import torch

    return device if device == "cpu" or torch.cuda.is_available() else "cpu"


def check_precision(precision: str, device: str) -> None:
    """Raise `RedxError` if the precision is bfloat16 and this processor cannot compute with it.

    Parameters
    ----------
    precision
        `float32`, `bfloat16` or `float16`.
    device
        `cpu` or `cuda`.
    """
    if precision == "bfloat16" and device == "cpu" and not _bfloat16_works():
        raise RedxError(
            "PyTorch crashes with bfloat16 on this machine; set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before the start, "
            "or choose float32."
        )


@lru_cache
def _bfloat16_works() -> bool:
    """Return whether a product in bfloat16 works, tried in a separate process.

    Some processors announce AMX although the operating system forbids it, and then the process is killed.
    """
    code = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(x, x)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode >= 0
