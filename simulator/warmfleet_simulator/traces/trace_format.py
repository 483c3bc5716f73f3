"""What a format has to do: recognise its files, and make an entry of a line."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from warmfleet_simulator.traces.request import Segment

MAX_TOKENS: Final = 2**24
"""Of one prompt or answer; no model's context is longer."""


class Entry(NamedTuple):
    """One line: a request, with the time as the trace has it."""

    at_ms: float
    """Since any fixed time."""
    time: str
    """Field and value as written, for messages."""
    prompt: tuple[Segment, ...]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format of traces."""

    name: str
    recognises: Callable[[bytes], bool]
    """Whether a file that begins with this line has the format."""
    entry: Callable[[int, bytes], Entry | None]
    """What a line has, by its number from 1; None for one without a request. Raises ValueError, or what a
    decoder of msgspec raises: the line is damaged or impossible, the text names the field."""


def require_tokens(**fields: int) -> None:
    """Raise ValueError, naming the field, for a number of tokens that no request has."""
    for name, tokens in fields.items():
        if not 1 <= tokens <= MAX_TOKENS:
            raise ValueError(f"{name} {tokens} is not between 1 and {MAX_TOKENS}")
