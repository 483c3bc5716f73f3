"""The output of a child process in a file of bounded size.

What a full disk cannot take is lost and counted; the fleet keeps running.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from warmfleet_contracts.decoding import UNDECODABLE

MAX_LOG_BYTES: Final = 16 * 1024 * 1024
_TAIL_BYTES: Final = 8192


class LogFile:
    """A log that rotates: `<path>` and `<path>.1`, each of at most `max_bytes`.

    Opening one rotates the log of an earlier fleet, so that an old error is not read as a new one.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_LOG_BYTES) -> None:
        self.path = path
        self._previous_path = path.with_name(path.name + ".1")
        self._max_bytes = max_bytes
        self._has_rotated = False
        if path.exists():
            path.replace(self._previous_path)
        self._file = path.open("ab", buffering=0)
        self._size = 0
        self._lost_bytes = 0
        self._write_error = ""

    def write(self, data: bytes) -> None:
        """Append, in a new file when this one is full. What cannot be written is counted instead."""
        try:
            self._make_room(len(data))
            if self._lost_bytes:
                note = f"\n-- {self._lost_bytes} bytes of the log are lost: {self._write_error} --\n"
                self._append(note.encode())
                self._lost_bytes = 0
            self._append(data)
        except OSError as error:
            self._lost_bytes += len(data)
            self._write_error = (error.strerror or str(error)).lower()

    def _make_room(self, wanted_bytes: int) -> None:
        if self._size and self._size + wanted_bytes > self._max_bytes:
            self.path.replace(self._previous_path)
            self._file.close()
            self._file = self.path.open("ab", buffering=0)
            self._size = 0
            self._has_rotated = True

    def _append(self, data: bytes) -> None:
        while data:
            written = self._file.write(data)
            self._size += written
            data = data[written:]

    def close(self) -> None:
        self._file.close()

    def tail(self, lines: int) -> list[str]:
        """The last lines since the log was opened, oldest first, without empty ones."""
        end = _read_end(self.path)
        if self._has_rotated:
            end = _read_end(self._previous_path) + end
        text = end.decode(errors="replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]


def worth_quoting(lines: Sequence[str]) -> list[str]:
    """The lines to show in an error message: warnings and errors as text, and unstructured lines.

    Structured lines of lower levels are left out; if there are no others, all are returned unchanged.
    """
    readable = [text for line in lines if (text := _in_words(line))]
    return readable or list(lines)


def _in_words(line: str) -> str:
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
    except UNDECODABLE:
        return line
    if fields.get("level") not in {"warning", "error", "critical"}:
        return ""
    parts = (fields.get("event"), fields.get("reason") or fields.get("error"), fields.get("exception"))
    return ": ".join(str(part) for part in parts if part)


def _read_end(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read(_TAIL_BYTES)
