"""The log of a process, readable while the process writes."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def error_log() -> Iterator[tuple[IO[str], IO[str]]]:
    """The file for a process to write to, and the same one for its log to be read from.

    Opened twice: processes that share one opening share its position, and what is written while a reader
    has moved that to the start overwrites the first lines.
    """
    with tempfile.NamedTemporaryFile("w") as written, Path(written.name).open() as read:
        yield written, read


def lines_so_far(log: IO[str]) -> list[str]:
    """What was written so far, without a line that is being written."""
    log.seek(0)
    return whole_lines(log.read())


def whole_lines(text: str) -> list[str]:
    """The lines of `text` but the last, if that has no end yet."""
    return text.rpartition("\n")[0].splitlines()
