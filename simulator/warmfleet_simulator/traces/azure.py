"""Azure's format: CSV with a request per line, of which only times and lengths are known.

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:15:46.6805900,374,44

Nothing is known of prefixes, so no two prompts share any (Patel et al. 2024, arXiv:2311.18677; the traces are
in github.com/Azure/AzurePublicDataset).
"""

from datetime import UTC, datetime
from typing import Final

from warmfleet_simulator.traces.request import FIRST_ANSWER_ID, Segment
from warmfleet_simulator.traces.trace_format import Entry, TraceFormat, require_tokens

_HEADER: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MOST_DIGITS: Final = 20
"""Of a number of tokens."""


def _entry(number: int, text: bytes) -> Entry | None:
    fields = tuple(field.strip() for field in text.decode().lstrip("\ufeff").split(","))
    if fields == _HEADER:
        return None
    if len(fields) != len(_HEADER):
        raise ValueError(f"{len(fields)} fields in place of {', '.join(_HEADER)}")
    time, *counts = fields
    context_tokens, generated_tokens = map(_count, _HEADER[1:], counts)
    require_tokens(ContextTokens=context_tokens, GeneratedTokens=generated_tokens)
    return Entry(
        at_ms=_milliseconds(time),
        time=f"TIMESTAMP {time}",
        prompt=(Segment(number % FIRST_ANSWER_ID, context_tokens),),
        output_tokens=generated_tokens,
    )


def _milliseconds(time: str) -> float:
    """Since 1970; a time without a zone is UTC."""
    try:
        at = datetime.fromisoformat(time)
    except ValueError as error:
        raise ValueError(f"TIMESTAMP {time[:64]!r} is no date and time") from error
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1e3


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise ValueError(f"{name} {text[:64]!r} is no number of tokens")
    return int(text)


AZURE: Final = TraceFormat(
    name="Azure's (CSV with TIMESTAMP)",
    recognises=lambda line: b"TIMESTAMP" in line[:16],
    entry=_entry,
)
