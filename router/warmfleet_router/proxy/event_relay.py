"""Passes the events of a worker's stream on to the client, in the callback that brings them, and counts them.

Bodies are not parsed. A stream is cut only at the blank lines between its events, so that a worker's death
never leaves half an event in front of the error object; its events are counted.
"""

from collections.abc import Callable

from warmfleet_router.admission.dispatch import RequestUsage
from warmfleet_router.proxy.client_response import ClientResponse
from warmfleet_router.proxy.sse_splitter import (
    SseSplitter,
    count_events,
    ends_stream,
    has_server_error,
    is_plain_event,
)
from warmfleet_router.proxy.token_gaps import TokenGaps


class EventRelay:
    """The events of one stream; a `BodyReceiver`. What it does per event is the router's cost per token."""

    __slots__ = (
        "_client",
        "_gaps",
        "_on_first_token",
        "_splitter",
        "_tokens",
        "_usage",
        "_write",
        "_write_chunk",
        "failed",
    )

    def __init__(
        self,
        client: ClientResponse,
        splitter: SseSplitter,
        usage: RequestUsage,
        gaps: TokenGaps,
        *,
        role_events: int,
        on_first_token: Callable[[], object],
    ) -> None:
        """`splitter` holds what came after the events for `begin`; `usage` has the tokens so far.

        `on_first_token` is called before the first of them is written.
        """
        self.failed = False
        """Whether the worker has sent an error object."""
        self._client = client
        self._write = client.body.write
        self._write_chunk = client.body.write_chunk
        self._splitter = splitter
        self._usage = usage
        self._gaps = gaps
        self._on_first_token = on_first_token
        self._tokens = -role_events
        """Events so far, from the end of the roles on."""

    async def begin(self, events: bytes) -> None:
        """Write the first events of the stream, as soon as the client takes them."""
        self._count(events)
        self._gaps.blocked()
        await self._client.write(events, more=True)
        self._gaps.taken()

    def receive(self, data: bytes, resume: Callable[[], None]) -> bool:
        """Pass on what is whole by now; False while the client takes nothing, until `resume` is called."""
        events = self._splitter.feed(data)
        if not events:
            return True
        if self._tokens > 0 and is_plain_event(events):
            self._count_plain()
        else:
            self._count(events)
        return self._write(events) or self._keep(events, resume)

    def receive_chunk(self, chunk: bytes, start: int, resume: Callable[[], None]) -> bool:
        """As `receive`; one whole event goes to the client in the chunk in which it came, not copied."""
        if self._tokens > 0 and not self._splitter.kept and is_plain_event(chunk, start, len(chunk) - 2):
            self._count_plain()
            return self._write_chunk(chunk) or self._keep(chunk[start:-2], resume)
        return self.receive(chunk[start:-2], resume)

    def ended(self) -> None:
        """The answer is complete."""
        self._gaps.ended()

    def _count_plain(self) -> None:
        self._tokens += 1
        self._usage.output_tokens = self._tokens
        self._gaps.arrived(1)

    def _count(self, events: bytes) -> None:
        is_error = has_server_error(events)
        self.failed = self.failed or is_error
        before = max(self._tokens, 0)
        self._tokens += count_events(events) - is_error
        new = self._tokens - before
        if new > 0:
            self._usage.output_tokens = self._tokens
            if not before:
                self._on_first_token()
            if not ends_stream(events):
                self._gaps.arrived(new)

    def _keep(self, events: bytes, resume: Callable[[], None]) -> bool:
        self._gaps.blocked()
        self._client.keep(events, lambda: self._taken(resume))
        return False

    def _taken(self, resume: Callable[[], None]) -> None:
        self._gaps.taken()
        resume()
