"""`python -m redx` is the command."""

from redx.cli import main

main()
