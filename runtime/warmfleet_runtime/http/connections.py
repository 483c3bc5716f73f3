"""How many connections a server holds, and which of them goes when there are too many.

The one that has waited longest for a request goes first: a client that holds connections open, or sends a
head byte by byte, crowds out its like and not those that ask and leave. What is being answered is never cut.
"""

from typing import Final, Protocol

MAX_CONNECTIONS: Final = 8192


class Closable(Protocol):
    """One connection."""

    def crowded_out(self) -> None:
        """End the connection now."""
        ...


class Connections:
    """The open connections of one server, those without a request in the order of their waiting."""

    def __init__(self, limit: int = MAX_CONNECTIONS) -> None:
        self.limit = limit
        self.closing = False
        """Set when the server shuts down: every response that begins from then on closes its connection."""
        self._open: set[Closable] = set()
        self._waiting: dict[Closable, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, connection: Closable) -> bool:
        """Whether there is room for `connection`, made by ending another one where need be."""
        if len(self._open) >= self.limit:
            oldest = next(iter(self._waiting), None)
            if oldest is None:
                return False
            self.closed(oldest)
            oldest.crowded_out()
        self._open.add(connection)
        self._waiting[connection] = None
        return True

    def asks(self, connection: Closable) -> None:
        """A request has arrived on it."""
        self._waiting.pop(connection, None)

    def waits(self, connection: Closable) -> None:
        """Its request has been answered."""
        if connection in self._open:
            self._waiting.pop(connection, None)
            self._waiting[connection] = None

    def closed(self, connection: Closable) -> None:
        """It is gone. Idempotent."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)
