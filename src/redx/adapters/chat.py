"""Messages of a chat as the text that the base continues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redx.adapters.base import BaseLM
from redx.errors import RedxError


def has_template(base: BaseLM) -> bool:
    """Return whether the tokenizer of the base has a chat template."""
    return bool(getattr(base.tokenizer, "chat_template", None))


def chat_text(base: BaseLM, messages: Sequence[dict[str, str]]) -> str:
    """Return messages in the chat template of the base, up to where the answer begins.

    Parameters
    ----------
    base
        The model, whose tokenizer has a chat template.
    messages
        Each with `role` and `content`.

    Raises
    ------
    RedxError
        Where there is no template, or it refuses these messages.
    """
    if not has_template(base):
        raise RedxError(f"{base.name} has no chat template; send the text as a prompt to /v1/completions.")
    tokenizer: Any = base.tokenizer
    try:
        return str(tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False))
    except Exception as error:  # templates raise errors of their own, such as for a role that they do not know
        reason = " ".join(str(error).split())[:200]
        raise RedxError(f"The chat template of {base.name} refuses these messages ({reason}); change them.") from error


def plain_text(messages: Sequence[dict[str, str]]) -> str:
    """Return the contents of messages below each other."""
    return "\n".join(message["content"] for message in messages)
