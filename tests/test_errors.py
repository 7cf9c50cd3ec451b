"""Text from outside is shown on a terminal and never obeyed."""

import pickle

import pytest

from redx.errors import RedxError, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("äöü 你好 ε", "äöü 你好 ε"),
        ("[bold]run[/]", "[bold]run[/]"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("\x1b]8;;http://x\x07y", "\\x1b]8;;http://x\\x07y"),
        ("two\nlines\t.", "two\\nlines\\t."),
        ("abc\u202edef", "abc\\u202edef"),
        ("half \ud800", "half \\ud800"),
    ],
)
def test_control_characters_are_written_as_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_a_message_escapes_what_names_of_others_bring_along() -> None:
    error = RedxError("There is no expert 'a\x1b[31m\r\nb\u202e'.")
    assert str(error) == "There is no expert 'a\\x1b[31m\\r\\nb\\u202e'."
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - as Ray sends it
