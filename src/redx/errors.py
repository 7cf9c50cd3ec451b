"""What a user can mend: every refusal of redx is one of these, told in one sentence."""


class RedxError(Exception):
    """Says what is wrong and what to do; the command line prints it and exits with code 2."""
