"""How far a simulation is, for a progress bar."""

from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """State of a simulation after one more request has arrived."""

    requests: int
    """Read from the trace so far."""
    virtual_seconds: float
    done_ratio: float
    """Share of the trace that is read, by bytes where it is a file."""


OnProgress = Callable[[Progress], None]


def ignore_progress(_progress: Progress) -> None:
    """For callers that show nothing."""
