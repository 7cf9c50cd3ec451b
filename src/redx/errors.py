"""The error that redx raises for wrong input, missing files and unsuitable settings."""


class RedxError(Exception):
    """An error that the user can correct; its message says what is wrong and what to do.

    The command line prints the message and exits with code 2.
    """
