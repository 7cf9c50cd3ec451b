"""Commands as tests run them: their exit code, stdout and stderr, and what an error looks like."""

from collections.abc import Callable

Answer = tuple[int, str, str]  # exit code, stdout, stderr
Ask = Callable[..., Answer]  # runs the words of a command


def refused(answer: Answer, *words: str) -> None:
    """Check that a command ended with exit code 2 and one sentence on stderr that holds these words."""
    code, out, err = answer
    assert (code, out) == (2, ""), answer
    assert err.startswith("redx: "), err
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    for word in words:
        assert word in err, err


def succeeded(answer: Answer) -> str:
    """Check that a command ended with exit code 0, and return its stdout."""
    code, out, err = answer
    assert code == 0, err
    return out
