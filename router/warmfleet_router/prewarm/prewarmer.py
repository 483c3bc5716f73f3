"""Has newcomers compute hot prefixes before they take requests.

A worker reports no blocks until its routers have prewarmed it, unless its `--prewarm-seconds` are 0. This
router sends each such life of a worker one request: the best prefixes, or none while requests wait for its
models, which makes it ready at once.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence

import msgspec
import structlog

from warmfleet_contracts.cache.kv_events import Frame, Hello
from warmfleet_contracts.cache.prewarm import MAX_PREFIXES, Prefix, PrewarmRequest, encode_prewarm
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.prewarm.hot_prefixes import HotPrefix, HotPrefixes, in_equal_parts
from warmfleet_router.prewarm.worker_prewarms import WorkerPrewarms
from warmfleet_router.workers.fleet import WorkerStatus
from warmfleet_router.workers.upstream import UpstreamError

ANSWER_SECONDS = 300.0
"""The longest that a worker may be set to wait; by then it has long been ready."""

_log = structlog.get_logger("warmfleet.router.prewarm")


class Prewarmer:
    """Sends each newcomer its prefixes, once per epoch; the newcomer answers when they are computed.

    One that did not answer gets none in its next epoch: should its engine have ended over a prefix, it would
    do so in every life, and no newcomer would ever be ready.

    prewarmer.frame_arrived(uid, frame)  # each frame of a verified worker
    prewarmer.forget(uid)
    await prewarmer.stop()
    """

    def __init__(
        self,
        hot: HotPrefixes,
        prewarms: WorkerPrewarms,
        *,
        worker: Callable[[str], WorkerStatus | None],
        requests_wait: Callable[[Collection[str]], bool],
        is_tenant: Callable[[str], bool],
        now: Callable[[], float],
        metrics: RouterMetrics,
    ) -> None:
        """`requests_wait`: whether any waits for these models; `is_tenant`: whether one has a key still."""
        self._hot = hot
        self._prewarms = prewarms
        self._worker = worker
        self._requests_wait = requests_wait
        self._is_tenant = is_tenant
        self._now = now
        self._metrics = metrics
        self._epochs: dict[str, str] = {}
        self._unanswered: set[str] = set()
        """Uids of those that were sent prefixes and have answered nothing since."""
        self._asking: dict[str, asyncio.Task[None]] = {}
        """Of each worker's newest epoch; ended ones stay until the next."""

    async def start(self) -> None:
        """Nothing to begin: frames do."""

    async def stop(self) -> None:
        """Give up what is not answered."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def frame_arrived(self, uid: str, frame: Frame) -> None:
        """A verified worker reports; one without blocks, that does not drain, may wait for prefixes."""
        load = frame.load
        if load is None or load.total_blocks or load.draining or self._epochs.get(uid) == frame.epoch:
            return
        self._give_up(uid)
        self._epochs[uid] = frame.epoch
        self._asking[uid] = asyncio.create_task(self._prewarm(uid), name="prewarm")

    def forget(self, uid: str) -> None:
        """A worker left the fleet."""
        self._give_up(uid)
        self._epochs.pop(uid, None)
        self._unanswered.discard(uid)

    def _give_up(self, uid: str) -> None:
        """Wait no longer for the answer of a life that has ended."""
        asking = self._asking.pop(uid, None)
        if asking is not None:
            asking.cancel()

    async def _prewarm(self, uid: str) -> None:
        worker = self._worker(uid)
        if worker is None or worker.hello is None:
            return
        requests_wait = self._requests_wait(worker.served_names)
        may_have = not requests_wait and uid not in self._unanswered
        prefixes = self._prefixes_for(worker, worker.hello) if may_have else []
        body = encode_prewarm(PrewarmRequest(prefixes=prefixes, requests_wait=requests_wait))
        count = len(prefixes)
        del prefixes  # as large as the body
        if count:
            self._unanswered.add(uid)
        try:
            answer = await self._prewarms.ask(worker, body, ANSWER_SECONDS)
        except UpstreamError as error:
            self._metrics.on_prewarm("failed")
            _log.warning("worker not prewarmed", uid=uid, reason=str(error))
        else:
            self._unanswered.discard(uid)
            self._metrics.on_prewarm("computed" if count else "empty")
            _log.info("worker prewarmed", uid=uid, prefixes=count, **msgspec.structs.asdict(answer))

    def _prefixes_for(self, worker: WorkerStatus, hello: Hello) -> list[Prefix]:
        hot = self._hot.best(
            hello.tokenizer_digest, worker.served_names, self._now(), deployment=worker.endpoint.deployment
        )
        kept = [one for one in hot if self._is_tenant(one.origin.tenant)]
        return within_bounds(kept, self._prewarms.left_bytes)


def within_bounds(hot: Sequence[HotPrefix], max_bytes: int) -> list[Prefix]:
    """As many as one request takes, the first ones of each tenant, in the order that they have."""
    places = in_equal_parts(hot, max_prefixes=MAX_PREFIXES, max_bytes=max_bytes)
    return [Prefix.of(hot[place].origin.salt, hot[place].token_ids) for place in places]
