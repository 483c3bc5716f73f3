"""What a supervisor tells whoever started it, one JSON object per line."""

import msgspec


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """A step begins."""

    text: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Everything is ready; nothing is said after this."""

    api_url: str
    seconds: float


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """The devcluster did not start; nothing of it is left."""

    kind: str
    """Name of the error's class."""
    text: str
    advice: str


News = Progress | Ready | Failure
