"""Has workers that stay compute what only workers hold that are about to go.

The victims still serve meanwhile, and routers find the prefixes at the others by their events. What is not
done at the deadline is given up.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby

import structlog

from warmfleet_contracts.cache.blocks import BlockHash, CacheIdentity, block_hashes, block_root
from warmfleet_contracts.cache.handover import HandoverAnswer, HandoverRequest
from warmfleet_contracts.cache.kv_events import Hello
from warmfleet_contracts.cache.prewarm import (
    MAX_PREFIXES,
    Prefix,
    PrewarmAnswer,
    PrewarmRequest,
    encode_prewarm,
)
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.prewarm.handover_plan import HandoverPlan, Move, Skipped, Terms, of_share
from warmfleet_router.prewarm.hot_prefixes import HotPrefix, HotPrefixes, in_equal_parts
from warmfleet_router.prewarm.worker_prewarms import WorkerPrewarms
from warmfleet_router.routing.capacity import HEADROOM_RATIO
from warmfleet_router.workers.fleet import Fleet, WorkerStatus
from warmfleet_router.workers.upstream import UpstreamError

ANSWER_SECONDS = 0.5
"""From the end of a worker's time to its answer."""
_SLICE = 16
"""Prefixes between which the event loop runs."""

_log = structlog.get_logger("warmfleet.router.prewarm")


class Handovers:
    """Moves this router's share of what victims hold.

    answer = await handovers.hand_over(HandoverRequest(victims=("uid",), seconds=5))
    """

    def __init__(
        self,
        hot: HotPrefixes,
        prewarms: WorkerPrewarms,
        *,
        fleet: Fleet,
        requests_wait: Callable[[Collection[str]], bool],
        is_tenant: Callable[[str], bool],
        now: Callable[[], float],
        metrics: RouterMetrics,
    ) -> None:
        """`requests_wait`: whether any waits for these models; `is_tenant`: whether one has a key still."""
        self._hot = hot
        self._prewarms = prewarms
        self._fleet = fleet
        self._requests_wait = requests_wait
        self._is_tenant = is_tenant
        self._now = now
        self._metrics = metrics

    async def hand_over(self, request: HandoverRequest) -> HandoverAnswer:
        """Move what is worth it, for `request.seconds` at most; cancellation gives up the rest."""
        begun = self._now()
        deadline = begun + request.seconds
        terms = Terms(frozenset(request.victims), request.payback_seconds, request.share, request.shares)
        done = _Done()
        for own in (True, False) if terms.shares > 1 else (True,):
            # Those of others only after its own: by then the others have moved what they know of theirs.
            for victim in self._caches_of(terms.victims):
                if self._now() < deadline:
                    await self._move(victim, terms, deadline, done, own=own)
        answer = HandoverAnswer(
            moved_prefixes=done.moved,
            computed_tokens=done.computed_tokens,
            skipped={reason.value: count for reason, count in done.skipped.items() if count},
            seconds=round(self._now() - begun, 3),
        )
        self._metrics.on_handover(answer)
        _log.info(
            "prefixes handed over",
            victims=len(terms.victims),
            prefixes=done.moved,
            computed_tokens=done.computed_tokens,
            skipped=answer.skipped,
            seconds=answer.seconds,
        )
        return answer

    def _caches_of(self, victims: Iterable[str]) -> list[WorkerStatus]:
        """One of the victims for each kind of cache and each deployment that they are of."""
        found = [worker for uid in victims if (worker := self._fleet.worker(uid)) is not None]
        known = sorted((one for one in found if one.hello is not None and one.precise), key=_cache_of)
        return [next(group) for _, group in groupby(known, key=_cache_of)]

    async def _move(
        self, victim: WorkerStatus, terms: Terms, deadline: float, done: "_Done", *, own: bool
    ) -> None:
        hello = victim.hello
        assert hello is not None
        hot = self._hot.best(
            hello.tokenizer_digest, victim.served_names, self._now(), deployment=victim.endpoint.deployment
        )
        hot = [one for one in of_share(hot, terms, own=own) if one.block_hash not in done.tried]
        stay = self._that_stay(victim, terms.victims)
        plan = HandoverPlan(
            terms,
            room_tokens={uid: _room_tokens(worker) for uid, worker in stay.items()},
            matches=self._fleet.index.matches,
            block_size_tokens=hello.block_size_tokens,
        )
        for number, prefix in enumerate(hot):
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            if self._is_tenant(prefix.origin.tenant):
                plan.consider(prefix, _hashes(prefix, hello), self._now())
            else:
                plan.skipped[Skipped.NO_KEY] += 1
        done.skipped += plan.skipped
        async with asyncio.TaskGroup() as group:
            for uid, worker in stay.items():
                moves = [move for move in plan.moves if move.uid == uid]
                if moves:
                    group.create_task(self._send(worker, moves, deadline, done))

    def _that_stay(self, victim: WorkerStatus, victims: Collection[str]) -> dict[str, WorkerStatus]:
        """Workers with the victim's kind of cache that have time for more: none while requests wait."""
        if self._requests_wait(victim.served_names):
            return {}
        return {
            worker.endpoint.uid: worker
            for worker in self._fleet.workers()
            if worker.endpoint.uid not in victims
            and worker.hello is not None
            and _cache_of(worker) == _cache_of(victim)
            and (worker.ready and worker.precise and not worker.load.draining)
            and not worker.load.waiting_sequences
        }

    async def _send(
        self, worker: WorkerStatus, moves: Sequence[Move], deadline: float, done: "_Done"
    ) -> None:
        places = in_equal_parts(
            [move.prefix for move in moves], max_prefixes=MAX_PREFIXES, max_bytes=self._prewarms.left_bytes
        )
        sent = [moves[place].prefix for place in places]
        done.skipped[Skipped.NO_ROOM] += len(moves) - len(sent)
        done.tried.update(prefix.block_hash for prefix in sent)
        now = self._now()
        if not sent or now >= deadline:
            done.skipped[Skipped.LATE] += len(sent)
            return
        prefixes = [Prefix.of(one.origin.salt, one.token_ids, max(now - one.used_at, 0.0)) for one in sent]
        body = encode_prewarm(PrewarmRequest(prefixes=prefixes, within_seconds=deadline - now))
        del prefixes  # as large as the body
        try:
            answer = await self._prewarms.ask(worker, body, deadline - now + ANSWER_SECONDS)
        except UpstreamError as error:
            done.skipped[Skipped.FAILED] += len(sent)
            _log.warning("prefixes not handed over", uid=worker.endpoint.uid, reason=str(error))
        else:
            done.add(answer, sent)


class _Done:
    """What came of one handover so far."""

    def __init__(self) -> None:
        self.moved = 0
        self.computed_tokens = 0
        self.skipped: Counter[Skipped] = Counter()
        self.tried: set[BlockHash] = set()
        """Prefixes that were sent: their worker's events may come after its answer."""

    def add(self, answer: PrewarmAnswer, sent: Collection[HotPrefix]) -> None:
        """A worker's answer about these prefixes; what it claims beyond them does not count."""
        refused = min(answer.refused_prefixes, len(sent))
        late = min(answer.late_prefixes, len(sent) - refused)
        self.moved += len(sent) - refused - late
        self.computed_tokens += min(answer.computed_tokens, sum(len(one.token_ids) for one in sent))
        self.skipped[Skipped.REFUSED] += refused
        self.skipped[Skipped.LATE] += late


def _cache_of(worker: WorkerStatus) -> tuple[str, bytes]:
    """Workers for which this is equal have the same blocks, of the same owner."""
    return worker.endpoint.deployment, worker.identity


def _room_tokens(worker: WorkerStatus) -> int:
    """What no sequence holds, but for what is kept for those that come."""
    load, hello = worker.load, worker.hello
    size = hello.block_size_tokens if hello is not None else 0
    return max(int(load.total_blocks * (1 - HEADROOM_RATIO)) - load.pinned_blocks, 0) * size


def _hashes(prefix: HotPrefix, hello: Hello) -> Callable[[], list[BlockHash]]:
    def hashes() -> list[BlockHash]:
        root = block_root(CacheIdentity(hello.identity), salt=prefix.origin.salt)
        return block_hashes(root, prefix.token_ids, hello.block_size_tokens)

    return hashes
