"""Traffic that can be read several times: each fleet of a comparison gets the same requests."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from warmfleet_simulator.traces.reader import read_trace
from warmfleet_simulator.traces.request import TraceRequest
from warmfleet_simulator.traces.trace_file import TraceFile


class Reading(NamedTuple):
    """Traffic that is being read."""

    requests: Iterator[TraceRequest]
    """In the order of their arrivals, the first at 0 seconds or after; one is made when it is asked for."""
    done_ratio: Callable[[], float]
    """How much has been read, for a progress bar."""


class Traffic(Protocol):
    """A trace, or a workload that generates its requests."""

    @property
    def name(self) -> str:
        """For messages and reports."""

    def open(self) -> AbstractContextManager[Reading]:
        """The requests from the first on.

        Raises:
            TraceError: also while they are read; the text names the line.
        """


class RecordedTraffic:
    """The requests of a trace file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def name(self) -> str:
        return str(self._path)

    @contextmanager
    def open(self) -> Iterator[Reading]:
        """Open the file; each reading opens it anew."""
        with TraceFile(self._path) as file:
            yield Reading(read_trace(file), lambda: file.read_bytes / max(file.total_bytes, 1))
