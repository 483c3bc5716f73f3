"""Reads traces in Mooncake's format: one JSON object per line, plain or compressed with gzip.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, ...]}

`timestamp` is in milliseconds; each of `hash_ids` stands for one block of the prompt, of 512 tokens but for
the last, and for all blocks before it (Qin et al. 2024, arXiv:2407.00079; the traces are in
github.com/kvcache-ai/Mooncake, FAST25-release/traces). One line is read at a time, so a trace may be larger
than the memory.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, Self

import msgspec

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_simulator.errors import TraceError
from warmfleet_simulator.traces.request import FIRST_ANSWER_ID, Segment, TraceRequest

BLOCK_TOKENS: Final = 512
"""Tokens of one block of a Mooncake trace."""
MAX_LINE_BYTES: Final = 1024 * 1024
MAX_TOKENS: Final = 2**24
"""Of one prompt or answer; no model's context is longer."""
_GZIP_MAGIC: Final = b"\x1f\x8b"


class _Line(msgspec.Struct, frozen=True):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


class TraceFile:
    """An open trace; `read_bytes` of `total_bytes` are read, for a progress bar.

    with TraceFile(path) as file:
        for request in read_mooncake(file):
            ...
    """

    def __init__(self, path: Path) -> None:
        """Open `path`, whose first bytes show whether it is compressed.

        Raises:
            TraceError: it cannot be opened.
        """
        self.path = path
        try:
            self._raw = path.open("rb")
            self.total_bytes = path.stat().st_size
            is_compressed = self._raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            self._raw.seek(0)
        except OSError as error:
            raise TraceError(f"{path}: {error.strerror}") from error
        self._lines: BinaryIO = io.BufferedReader(
            gzip.GzipFile(fileobj=self._raw) if is_compressed else self._raw
        )

    @property
    def read_bytes(self) -> int:
        """How far the file is read, compressed as it is."""
        return min(self._raw.tell(), self.total_bytes)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Each line that is not empty, with its number from 1.

        Raises:
            TraceError: the file is damaged or cut off, or a line is too long.
        """
        number = 0
        while True:
            number += 1
            try:
                line = self._lines.readline(MAX_LINE_BYTES + 1)
            except (OSError, EOFError, zlib.error) as error:
                raise TraceError(
                    f"{self.path}, line {number}: the file is cut off or damaged ({error})"
                ) from error
            if not line:
                return
            if len(line) > MAX_LINE_BYTES:
                raise TraceError(f"{self.path}, line {number}: longer than {MAX_LINE_BYTES} bytes")
            if line.strip():
                yield number, line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._lines.close()
        self._raw.close()


def read_mooncake(file: TraceFile) -> Iterator[TraceRequest]:
    """The requests of a trace, the first at 0 seconds.

    Raises:
        TraceError: a line is damaged, impossible, or earlier than the one before it; the text names it.
    """
    decoder = msgspec.json.Decoder(_Line)
    first_ms, last_ms = None, 0.0
    for number, text in file.lines():
        try:
            line = decoder.decode(text)
        except UNDECODABLE as error:
            raise TraceError(f"{file.path}, line {number}: {error}") from error
        if problem := _problem(line):
            raise TraceError(f"{file.path}, line {number}: {problem}")
        if first_ms is None:
            first_ms = last_ms = line.timestamp
        if line.timestamp < last_ms:
            raise TraceError(
                f"{file.path}, line {number}: timestamp {line.timestamp:g} is below {last_ms:g} of the "
                "line before; sort the trace first"
            )
        last_ms = line.timestamp
        yield TraceRequest(
            arrival_seconds=(line.timestamp - first_ms) / 1e3,
            prompt=tuple(_segments(line)),
            output_tokens=line.output_length,
            answer_id=FIRST_ANSWER_ID + number % FIRST_ANSWER_ID,
        )


def _problem(line: _Line) -> str:
    """Why no trace has such a line; empty for a good one."""
    if not 0 <= line.timestamp < 1e15:
        return f"timestamp {line.timestamp:g} is no time in milliseconds"
    for name, tokens in (("input_length", line.input_length), ("output_length", line.output_length)):
        if not 1 <= tokens <= MAX_TOKENS:
            return f"{name} {tokens} is not between 1 and {MAX_TOKENS}"
    blocks = -(-line.input_length // BLOCK_TOKENS)
    if len(line.hash_ids) != blocks:
        return (
            f"{len(line.hash_ids)} hash_ids for {line.input_length} tokens, which are {blocks} blocks "
            f"of {BLOCK_TOKENS}"
        )
    if not all(0 <= hash_id < FIRST_ANSWER_ID for hash_id in line.hash_ids):
        return f"a hash_id is not between 0 and {FIRST_ANSWER_ID - 1}"
    return ""


def _segments(line: _Line) -> Iterator[Segment]:
    left = line.input_length
    for hash_id in line.hash_ids:
        yield Segment(hash_id, min(left, BLOCK_TOKENS))
        left -= BLOCK_TOKENS
