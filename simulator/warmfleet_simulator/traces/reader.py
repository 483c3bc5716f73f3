"""Reads a trace file in any of the known formats, which its first line shows."""

from collections.abc import Iterator
from typing import Final

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_simulator.errors import TraceError
from warmfleet_simulator.traces.azure import AZURE
from warmfleet_simulator.traces.mooncake import MOONCAKE
from warmfleet_simulator.traces.recorded import RECORDED
from warmfleet_simulator.traces.request import FIRST_ANSWER_ID, TraceRequest
from warmfleet_simulator.traces.trace_file import TraceFile
from warmfleet_simulator.traces.trace_format import Entry, TraceFormat

FORMATS: Final = (RECORDED, MOONCAKE, AZURE)
"""The first that recognises a file reads it."""


def read_trace(file: TraceFile) -> Iterator[TraceRequest]:
    """The requests of a trace, the first at 0 seconds, each made when it is asked for.

    Raises:
        TraceError: a line is damaged, impossible, or earlier than the one before it; the text names it.
    """
    kind: TraceFormat | None = None
    first_ms, last = 0.0, None
    for number, text in file.lines():
        kind = kind or _format_of(file, number, text)
        entry = _entry(kind, file, number, text)
        if entry is None:
            continue
        if last is None:
            first_ms = entry.at_ms
        elif entry.at_ms < last.at_ms:
            raise TraceError(
                f"{file.path}, line {number}: {entry.time} is below {last.time.split(' ', 1)[1]} of the "
                "line before; sort the trace first"
            )
        last = entry
        yield TraceRequest(
            arrival_seconds=(entry.at_ms - first_ms) / 1e3,
            prompt=entry.prompt,
            output_tokens=entry.output_tokens,
            answer_id=FIRST_ANSWER_ID + number % FIRST_ANSWER_ID,
        )


def _format_of(file: TraceFile, number: int, text: bytes) -> TraceFormat:
    for known in FORMATS:
        if known.recognises(text):
            return known
    names = " nor ".join(known.name for known in FORMATS)
    raise TraceError(f"{file.path}, line {number}: the format is neither {names}")


def _entry(kind: TraceFormat, file: TraceFile, number: int, text: bytes) -> Entry | None:
    try:
        return kind.entry(number, text)
    except (*UNDECODABLE, ValueError) as error:
        raise TraceError(f"{file.path}, line {number}: {error}") from error
