"""Whether this machine can compute in a precision at all."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache

from redx.errors import RedxError


def check(precision: str, device: str) -> None:
    """Refuse bfloat16 on a processor that breaks down on it."""
    if precision == "bfloat16" and device == "cpu" and not _works():
        raise RedxError(
            "This machine breaks down on bfloat16; set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before the start, "
            "or choose float32."
        )


@lru_cache
def _works() -> bool:
    """Try it in a process of its own: on machines that announce AMX and forbid it, the process is killed."""
    code = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(x, x)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode >= 0
