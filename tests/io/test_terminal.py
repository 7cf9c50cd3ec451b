"""Text from outside is shown on a terminal and never obeyed."""

import pytest

from redx.io.terminal import printable


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
