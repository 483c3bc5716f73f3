"""What a process writes to stderr, to be read while it goes on writing."""

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


def whole_lines(log: IO[str]) -> list[str]:
    """What was written so far, without a line that is being written."""
    log.seek(0)
    return log.read().rpartition("\n")[0].splitlines()
