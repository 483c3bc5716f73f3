"""Has newcomers compute hot prefixes before they take requests.

A worker that is started with `--prewarm-seconds` reports no blocks until its routers have prewarmed it. This
router sends each such life of a worker one request: the best prefixes, or none while requests wait for a
worker, which is then ready at once.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog

from warmfleet_contracts.cache.kv_events import Frame
from warmfleet_contracts.cache.prewarm import (
    MAX_PREFIXES,
    PREWARM_PATH,
    Prefix,
    PrewarmAnswer,
    PrewarmRequest,
    encode_prewarm,
)
from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.prewarm.hot_prefixes import HotPrefix, HotPrefixes
from warmfleet_router.workers.fleet import WorkerStatus
from warmfleet_router.workers.upstream import Upstream, UpstreamError

MOST_BODY_BYTES = 16 * 1024 * 1024
"""Of the token ids that one worker is sent."""
ANSWER_SECONDS = 300.0
"""The longest that a worker may be set to wait; by then it has long been ready."""
_MOST_ANSWER_BYTES = 64 * 1024

_log = structlog.get_logger("warmfleet.router.prewarm")


class Prewarmer:
    """Sends each newcomer its prefixes, once per epoch; the newcomer answers when they are computed.

    prewarmer.frame_arrived(uid, frame)  # each frame of a verified worker
    prewarmer.forget(uid)
    await prewarmer.stop()
    """

    def __init__(
        self,
        hot: HotPrefixes,
        upstream: Upstream,
        *,
        worker: Callable[[str], WorkerStatus | None],
        requests_wait: Callable[[], bool],
        is_tenant: Callable[[str], bool],
        now: Callable[[], float],
        metrics: RouterMetrics,
    ) -> None:
        """`requests_wait`: whether any waits for a worker; `is_tenant`: whether that one has a key still."""
        self._hot = hot
        self._upstream = upstream
        self._worker = worker
        self._requests_wait = requests_wait
        self._is_tenant = is_tenant
        self._now = now
        self._metrics = metrics
        self._epochs: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Nothing to begin: frames do."""

    async def stop(self) -> None:
        """Give up what is not answered."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def frame_arrived(self, uid: str, frame: Frame) -> None:
        """A verified worker reports; one without blocks, that does not drain, may wait for prefixes."""
        load = frame.load
        if load is None or load.total_blocks or load.draining or self._epochs.get(uid) == frame.epoch:
            return
        self._epochs[uid] = frame.epoch
        task = asyncio.create_task(self._prewarm(uid), name="prewarm")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self, uid: str) -> None:
        """A worker left the fleet."""
        self._epochs.pop(uid, None)

    async def _prewarm(self, uid: str) -> None:
        worker = self._worker(uid)
        if worker is None or worker.hello is None:
            return
        prefixes = [] if self._requests_wait() else self._prefixes_for(worker)
        try:
            answer = await self._ask(worker, prefixes)
        except (UpstreamError, TimeoutError) as error:
            self._metrics.on_prewarm("failed")
            _log.warning("worker not prewarmed", uid=uid, reason=str(error) or "no answer in time")
        else:
            self._metrics.on_prewarm("computed" if prefixes else "empty")
            _log.info("worker prewarmed", uid=uid, prefixes=len(prefixes), **answer)

    def _prefixes_for(self, worker: WorkerStatus) -> list[Prefix]:
        hello = worker.hello
        assert hello is not None
        hot = self._hot.best(hello.tokenizer_digest, worker.served_names, self._now())
        return within_bounds([one for one in hot if self._is_tenant(one.origin.tenant)])

    async def _ask(self, worker: WorkerStatus, prefixes: list[Prefix]) -> Mapping[str, int]:
        body = encode_prewarm(PrewarmRequest(prefixes=prefixes))
        async with (
            asyncio.timeout(ANSWER_SECONDS),
            self._upstream.request(worker.endpoint, "POST", PREWARM_PATH, body=body) as response,
        ):
            content = await response.body(_MOST_ANSWER_BYTES)
        if response.status != 200:
            raise UpstreamError(f"the worker answered {response.status}")
        try:
            answer = msgspec.json.decode(content, type=PrewarmAnswer)
        except UNDECODABLE as error:
            raise UpstreamError(f"the answer cannot be read: {error}") from error
        return msgspec.structs.asdict(answer)


def within_bounds(hot: Sequence[HotPrefix]) -> list[Prefix]:
    """As many of the first as one request takes."""
    prefixes: list[Prefix] = []
    left_bytes = MOST_BODY_BYTES
    for one in hot:
        if len(prefixes) < MAX_PREFIXES and one.size_bytes <= left_bytes:
            prefixes.append(Prefix.of(one.origin.salt, one.token_ids))
            left_bytes -= one.size_bytes
    return prefixes
