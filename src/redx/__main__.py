"""The command `redx`: signals are handled before anything slow is imported."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

SENTENCES = {
    signal.SIGINT: "redx: interrupted; the same command continues where it stopped.\n",
    signal.SIGTERM: "redx: terminated; the same command continues where it stopped.\n",
}
IMPORTS = "<frozen importlib._bootstrap>"  # the file name of the functions that import modules


class Stopped(BaseException):
    """A signal asks to stop; it is no KeyboardInterrupt, which libraries turn into other exceptions.

    Attributes
    ----------
    signal
        The signal.
    """

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(self.signal.name)


def stop(number: int, frame: FrameType | None) -> None:
    """Handle a signal: raise `Stopped`, or end at once inside an import, where libraries swallow exceptions."""
    while frame is not None:
        if frame.f_code.co_filename == IMPORTS:
            os.write(2, SENTENCES[signal.Signals(number)].encode())
            os._exit(128 + number)
        frame = frame.f_back
    raise Stopped(number)


def main() -> None:
    """Run the command of `sys.argv`; Ctrl-C gives one sentence and exit code 130, SIGTERM exit code 143."""
    try:
        for number in SENTENCES:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, stop)
        from redx.cli import main as run_command

        try:
            run_command()
        finally:
            _ignore_signals()  # Python restores their default actions while it shuts down, after the work is done
    except Stopped as stopped:
        _ignore_signals()
        sys.stderr.write(SENTENCES[stopped.signal])
        sys.exit(128 + stopped.signal)


def _ignore_signals() -> None:
    for number in SENTENCES:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
