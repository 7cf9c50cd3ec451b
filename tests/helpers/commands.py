"""Commands as tests run them, and what a refusal looks like: exit code 2, one sentence, nothing on stdout."""

from collections.abc import Callable

Ask = Callable[..., tuple[int, str, str]]  # words to exit code, stdout, stderr


def refused(answer: tuple[int, str, str], *words: str) -> None:
    """The command was refused with one sentence that holds these words."""
    code, out, err = answer
    assert (code, out) == (2, ""), answer
    assert err.startswith("redx: "), err
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    for word in words:
        assert word in err, err
