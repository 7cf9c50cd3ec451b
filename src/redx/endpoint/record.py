"""The lines of the audit file of a language model: one for every answer, also for one whose client hung up."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any

from redx.adapters.library import LibraryFile
from redx.endpoint.answers import Answer
from redx.serve.audit import AuditFile, input_hash
from redx.serve.loaded import redx_version

KIND = "redx generation"  # marks a line
HUNG_UP = "client hung up"


def record(audit: AuditFile, library: LibraryFile, answer: Answer, asked: Any) -> None:
    """Append the line of an answer.

    Parameters
    ----------
    audit
        The file.
    library
        The adapters and their base.
    answer
        The answer, as far as it has come.
    asked
        The prompt, or the messages.
    """
    job, options = answer.job, answer.job.options
    text = answer.text
    shown = {"input": asked, "answer": text}
    hashed = {"input_sha256": input_hash(asked), "answer_sha256": input_hash(text)}
    line = {
        "kind": KIND,
        "id": secrets.token_hex(12),
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        **(hashed if audit.hashed else shown),
        "model": job.model,
        "weights": job.weights,
        "active": job.active,
        "tokens": len(answer.tokens),
        "radius": answer.radius,
        "finished": answer.finished or HUNG_UP,
        "options": {
            "max_tokens": options.max_new_tokens,
            "temperature": options.temperature,
            "top_p": options.top_p,
            "seed": options.seed,
            "stop": list(options.stop),
        },
        "base": library.base,
        "fingerprint": library.fingerprint,
        "adapter_hashes": job.hashes,
        "redx": redx_version(),
    }
    audit.append([line])
