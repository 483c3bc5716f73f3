"""SIGTERM before a server has its own handler.

The kernel drops a signal to process 1 of a container that has no handler for it. A pod that is deleted while
its process still imports or loads would go on, become ready, and be killed under its answers at the end of
the grace period. So a server's program calls this before it imports anything large.
"""

import os
import signal
import types
from typing import NoReturn


def end_on_sigterm() -> None:
    """End this process at SIGTERM, with exit code 143, until another handler is set."""
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: types.FrameType | None) -> NoReturn:
    # Nothing was served and nothing is to be written; an exception may be lost in what runs now.
    del frame
    os._exit(128 + number)
