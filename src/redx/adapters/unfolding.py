"""The text of tokens as they come: half characters and the beginnings of stop texts are held back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redx.adapters.generation import HALF


class UnfoldingText:
    """A text that grows token by token.

    Parameters
    ----------
    tokenizer
        Decodes the tokens.
    stop
        Texts that end it; they are not part of it.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._tokenizer, self._stop = tokenizer, tuple(word for word in stop if word)
        self._ids: list[int] = []
        self._shown = 0

    def add(self, token: int, last: bool) -> tuple[str, bool]:
        """Add a token.

        Parameters
        ----------
        token
            Its index in the vocabulary.
        last
            Whether the text ends with it, so that nothing is held back.

        Returns
        -------
        tuple
            The text that can be shown now, and whether a stop text has ended it.
        """
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        found = min((place for word in self._stop if (place := text.find(word)) >= 0), default=None)
        if found is not None:
            return self._show(text, found), True
        return self._show(text, len(text) if last else self._sure(text)), False

    def _show(self, text: str, end: int) -> str:
        shown, self._shown = text[self._shown : end], max(self._shown, end)
        return shown

    def _sure(self, text: str) -> int:
        """Return up to where a text cannot change any more."""
        end = len(text.rstrip(HALF))
        for word in self._stop:
            for length in range(min(len(word) - 1, end), 0, -1):
                if text.startswith(word[:length], end - length) and text[:end].endswith(word[:length]):
                    end -= length
                    break
        return end
