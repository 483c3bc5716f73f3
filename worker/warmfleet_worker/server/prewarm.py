"""Prefixes that routers have a worker compute ahead of requests, and when it takes requests.

Routers follow a worker's event stream, and so know of it before it is ready. It waits for their requests for
`ROUTER_SECONDS`, for what they have it compute for `--prewarm-seconds` in all, and depends on none.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import structlog

from warmfleet_contracts.cache.prewarm import Prefix, PrewarmAnswer
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.server.engine_client import EngineClient, SequenceRequest
from warmfleet_worker.server.events import EventHub
from warmfleet_worker.server.sequence_handle import SequenceHandle

ROUTER_SECONDS: Final = 2.0
"""From the engine's readiness to the requests of its routers."""
NO_OUTPUT: Final = SamplingParameters(max_output_tokens=0)

log = structlog.get_logger("warmfleet.worker.prewarm")


class Warmup:
    """Open or not; opens once and for all.

    warmup.begin()  # the engine is ready
    with warmup.computing():  # what a router asks for
        ...
    """

    def __init__(
        self, events: EventHub, seconds: float, *, on_open: Callable[[], None] = lambda: None
    ) -> None:
        """`seconds`: from the engine's readiness on, at most; 0 makes it open from the start.

        `on_open` is called when the engine is ready and it is open.
        """
        self._on_open = on_open
        self.is_open = seconds <= 0
        self._events = events
        self._seconds = seconds
        self._computing = self._answered = 0
        self._is_late = False
        """Whether no further router is waited for."""
        self._timers: list[asyncio.TimerHandle] = []
        events.warm_up(warming=not self.is_open)

    def begin(self) -> None:
        """The engine is ready: from now on time counts."""
        if self.is_open:
            self._on_open()
        else:
            loop = asyncio.get_running_loop()
            first = min(ROUTER_SECONDS, self._seconds)
            self._timers = [
                loop.call_later(first, self._waited),
                loop.call_later(self._seconds, self._open, "its time is over"),
            ]

    @contextmanager
    def computing(self, *, requests_wait: bool = False) -> Iterator[None]:
        """A router has prefixes computed. Opens once each that follows the event stream has its answer.

        `requests_wait`: it opens at once.
        """
        if requests_wait:
            self._open("requests wait")
        self._computing += 1
        try:
            yield
        finally:
            self._computing -= 1
            self._answered += 1
            if not self._computing and (self._is_late or self._answered >= self._events.subscribers):
                self._open("prewarmed")

    def _waited(self) -> None:
        self._is_late = True
        if not self._computing:
            self._open("prewarmed" if self._answered else "no router came")

    def _open(self, reason: str) -> None:
        if self.is_open:
            return
        self.is_open = True
        for timer in self._timers:
            timer.cancel()
        self._on_open()
        log.info("ready for requests", reason=reason)
        self._events.warm_up(warming=False)


async def compute_prefixes(
    engine: EngineClient,
    prefixes: Sequence[Prefix],
    *,
    within_seconds: float | None = None,
    is_ending: Callable[[], bool],
) -> PrewarmAnswer:
    """Have the engine compute prefixes, one after the other; cancellation gives up the rest.

    `is_ending` is asked before each: a worker that drains begins with none. What is not computed
    `within_seconds` is given up.

    Raises:
        EngineGoneError: the engine has ended, or does not keep up.
    """
    computed_tokens = cached_tokens = refused_prefixes = ended_prefixes = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(within_seconds):
            for prefix in prefixes:
                if is_ending():
                    break
                cached = await _computed(engine, prefix)
                ended_prefixes += 1
                if cached is None:
                    refused_prefixes += 1
                else:
                    cached_tokens += cached
                    computed_tokens += len(prefix.token_ids) - cached
    return PrewarmAnswer(
        computed_tokens=computed_tokens,
        cached_tokens=cached_tokens,
        refused_prefixes=refused_prefixes,
        late_prefixes=len(prefixes) - ended_prefixes,
    )


async def _computed(engine: EngineClient, prefix: Prefix) -> int | None:
    """Tokens of a prefix that were cached before it was computed; None: the engine does not compute it."""
    request = SequenceRequest(
        prompt_token_ids=prefix.token_ids.tolist(),
        sampling=NO_OUTPUT,
        salt=prefix.salt,
        is_idle=True,
        unused_seconds=prefix.unused_seconds,
    )
    wake = asyncio.Event()
    [handle] = engine.submit([request], wake)
    with handle:
        reason = await _ended(handle, wake)
    if reason != "length" or handle.cached_prefix is None:
        return None
    return handle.cached_prefix.cached_tokens


async def _ended(handle: SequenceHandle, wake: asyncio.Event) -> str:
    while not handle.finished:
        wake.clear()
        await wake.wait()
    return handle.take().finish_reason
