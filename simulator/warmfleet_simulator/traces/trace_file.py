"""Reads the lines of a trace file, plain or compressed with gzip, one at a time."""

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, Self

from warmfleet_simulator.errors import TraceError

MAX_LINE_BYTES: Final = 1024 * 1024
_GZIP_MAGIC: Final = b"\x1f\x8b"


class TraceFile:
    """An open trace, which may be larger than the memory; `read_bytes` of `total_bytes` are read.

    with TraceFile(path) as file:
        for request in read_trace(file):
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
