"""A container's log, as container runtimes keep it: each line with time and stream, rotated by size."""

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Self

from warmfleet_devcluster.clock import rfc3339_nano

MAX_LINE_BYTES: Final = 16 << 10
"""A longer line is written in parts, marked P."""
_LAST_LINES: Final = 80
_LAST_BYTES: Final = 2048


class LogWriter:
    """Appends a container's output to `path`; the file before the last rotation is kept as `path`.1."""

    def __init__(self, path: Path, max_bytes: int = 10 << 20) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._file: BinaryIO = path.open("ab")
        self._written_bytes = self._file.tell()
        self._partial: dict[str, bytes] = {}

    def write(self, stream: str, chunk: bytes) -> None:
        """Appends output of `stdout` or `stderr`; a chunk may begin and end inside a line."""
        *lines, rest = (self._partial.get(stream, b"") + chunk).split(b"\n")
        stamp = rfc3339_nano().encode()
        entries: list[bytes] = []
        for line in lines:
            while len(line) > MAX_LINE_BYTES:
                entries.append(_entry(stamp, stream, b"P", line[:MAX_LINE_BYTES]))
                line = line[MAX_LINE_BYTES:]
            entries.append(_entry(stamp, stream, b"F", line))
        while len(rest) > MAX_LINE_BYTES:
            entries.append(_entry(stamp, stream, b"P", rest[:MAX_LINE_BYTES]))
            rest = rest[MAX_LINE_BYTES:]
        self._partial[stream] = rest
        self._append(b"".join(entries))

    def close(self) -> None:
        for stream, rest in self._partial.items():
            if rest:
                self._append(_entry(rfc3339_nano().encode(), stream, b"F", rest))
        self._file.close()

    def _append(self, entries: bytes) -> None:
        if not entries:
            return
        if self._written_bytes + len(entries) > self._max_bytes and self._written_bytes > 0:
            self._file.close()
            self._path.replace(rotated(self._path))
            self._file = self._path.open("ab")
            self._written_bytes = 0
        self._file.write(entries)
        self._file.flush()
        self._written_bytes += len(entries)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Options of one reader, as in the query of `containerLogs`."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since: str = ""
    """RFC 3339; entries before it are left out."""
    limit_bytes: int | None = None


class LogReader:
    """Every entry that is kept at `path`, oldest first and once, across rotations.

    Entries that are rotated twice between two calls of `read` are lost, as they are on disk.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        before = rotated(path)
        self._file: BinaryIO = (before if before.exists() else path).open("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self) -> Iterator[bytes]:
        """Whole entries, with their line ends, that were written since the last call."""
        yield from self._whole_entries()
        while later := self._later():
            yield from self._whole_entries()  # written between the last read and the rotation
            self._file.close()
            self._file = later.open("rb")
            yield from self._whole_entries()

    def _whole_entries(self) -> Iterator[bytes]:
        while entry := self._file.readline():
            if not entry.endswith(b"\n"):
                self._file.seek(-len(entry), os.SEEK_CUR)  # read again when it is whole
                return
            yield entry

    def _later(self) -> Path | None:
        """The file that follows the open one; None while that is written to, or if the log is gone."""
        opened = os.fstat(self._file.fileno())
        files = [part for part in (rotated(self._path), self._path) if part.exists()]
        position = next((at for at, part in enumerate(files) if os.path.samestat(part.stat(), opened)), -1)
        return next(iter(files[position + 1 :]), None)


def rotated(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def read_entries(path: Path) -> Iterator[bytes]:
    """Every whole entry that is kept, oldest first, with its line end; none without a log."""
    if path.exists():
        with LogReader(path) as log:
            yield from log.read()


def present(entry: bytes, options: LogOptions) -> bytes:
    """The text of one entry as `options` ask for it; empty if the entry is older than `since`."""
    stamp, _stream, tag, text = entry.rstrip(b"\n").split(b" ", 3)
    if options.since and stamp.decode() < options.since:
        return b""
    shown = text if tag == b"P" else text + b"\n"
    return stamp + b" " + shown if options.timestamps else shown


def log_tail(path: Path) -> bytes:
    """The last 80 lines, at most 2 KiB: the termination message of a container that wrote none itself."""
    lines = deque((present(entry, LogOptions()) for entry in read_entries(path)), _LAST_LINES)
    return b"".join(lines)[-_LAST_BYTES:]


def _entry(stamp: bytes, stream: str, tag: bytes, line: bytes) -> bytes:
    return b"%s %s %s %s\n" % (stamp, stream.encode(), tag, line)
