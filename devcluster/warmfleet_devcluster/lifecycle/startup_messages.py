"""What a supervisor writes to its standard output while it starts, one JSON object per line."""

import msgspec


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """A step begins."""

    text: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Everything is ready. The last message of a start that succeeded."""

    api_url: str
    seconds: float


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """The devcluster did not start, or a component ended; all its processes have ended."""

    kind: str
    """Name of the error's class."""
    text: str
    advice: str


StartupMessage = Progress | Ready | Failure
