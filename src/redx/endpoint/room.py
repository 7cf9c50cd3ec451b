"""How many texts run together: bounds on their rows, and on the memory of what is kept of their tokens."""

from __future__ import annotations

from typing import NamedTuple

from redx.adapters.base import BaseLM
from redx.adapters.running import RunningBatch
from redx.endpoint.errors import ApiError
from redx.endpoint.job import Job
from redx.endpoint.models import ROUTED

MAX_ROWS = 128  # rows that run together: one for the base and for each adapter of every text
MAX_CACHE = 4 * 2**30  # bytes of the keys and values of all rows


class Room(NamedTuple):
    """Bounds on what runs together.

    Attributes
    ----------
    rows
        Largest number of rows.
    cells
        Largest number of rows times tokens of the longest one.
    """

    rows: int
    cells: int

    def admits(self, batch: RunningBatch, job: Job, adapters: int) -> bool:
        """Return whether a text may join a batch now.

        Parameters
        ----------
        batch
            What runs.
        job
            The text, which is ready.
        adapters
            The number of adapters.

        Raises
        ------
        ApiError
            Where the text needs more than there ever is.
        """
        assert job.ready is not None
        tokens, options = job.ready
        rows = 1 if job.model != ROUTED else 1 + min(adapters, adapters if options.top is None else options.top)
        width = len(tokens) + options.max_new_tokens
        if rows > self.rows or rows * width > self.cells:
            raise ApiError(
                400,
                f"{rows:,} rows of {width:,} tokens are more than this server runs at a time; lower max_tokens, or run "
                "fewer adapters by the field redx: {top: 1}.",
                "max_tokens",
            )
        running = [len(text.prompt) + text.options.max_new_tokens for text in batch.texts]
        together = batch.rows + rows
        return together <= self.rows and together * max((width, *running)) <= self.cells


def cell_bytes(base: BaseLM) -> int:
    """Return the bytes of the keys and values of one token of one row."""
    config = base.model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * 4 * config.num_hidden_layers * heads * size
