"""A request's prompts, matched for all workers at once.

A prompt is matched once per cache identity. What is predicted of a worker depends on nothing else than how
much of the prompts it holds, unless it is computing the next block: so workers that hold equally much share
one prediction.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import repeat

import msgspec

from warmfleet_contracts.cache.kv_events import Hello
from warmfleet_router.routing.cost import Work
from warmfleet_router.routing.pending_blocks import PendingBlocks
from warmfleet_router.routing.prediction import Prediction, Predictor
from warmfleet_router.routing.prompt_hashes import HashedPrompt, RequestPrompts
from warmfleet_router.workers.fleet import WorkerStatus
from warmfleet_router.workers.prefix_index import PrefixIndex

_CacheKey = tuple[bytes, int, str]


class _Group(msgspec.Struct):
    """Workers that have the same blocks for the same prompts."""

    prompts: Sequence[HashedPrompt]
    matches: Sequence[dict[str, int]]
    """Per prompt, the blocks that each worker holds, by uid."""
    warm: AbstractSet[str]
    """Workers that hold or compute the first block of a prompt, and some that computed it."""
    by_blocks: dict[tuple[int, ...], Prediction]
    """What is predicted of workers that compute nothing of the prompts, by the blocks that they hold."""
    cold: tuple[int, ...]
    """Blocks of a worker that holds none."""
    works: dict[int, Work]
    """What the request costs them, if it has one prompt, by the blocks of it that they hold."""


class AlikeWorks(msgspec.Struct, frozen=True):
    """What one request costs the workers of a group (`KeptFleet.alike`)."""

    cold: Work | None
    """Each of those that hold and compute none of it; None where every one does."""
    warm: Mapping[str, Work]
    """The others, by uid."""


class MatchedPrompts:
    """What workers have cached of one request's prompts, as index and pending blocks are now.

    matched.works(alike, workers)
    matched.tie_key(workers)  # of workers that were asked for before
    """

    def __init__(
        self, prompts: RequestPrompts, index: PrefixIndex, pending: PendingBlocks, predictor: Predictor
    ) -> None:
        self._prompts = prompts
        self._index = index
        self._pending = pending
        self._predictor = predictor
        self._groups: dict[_CacheKey, _Group | None] = {}

    def prediction(self, worker: WorkerStatus) -> Prediction:
        """What a worker has cached, as `Predictor.predict` finds it."""
        group, uid = self._group(worker.hello), worker.endpoint.uid
        if group is None or not (worker.precise and self._index.is_precise(uid)):
            return self._predictor.predict(worker, self._prompts)
        held = group.cold
        if uid in group.warm:
            held = tuple([matches.get(uid, 0) for matches in group.matches])
            if any(map(self._computes, repeat(uid), group.prompts, held)):
                return self._predictor.predict(worker, self._prompts, held)
        found = group.by_blocks.get(held)
        if found is None:
            found = group.by_blocks[held] = self._predictor.predict(worker, self._prompts, held)
        return found

    def works(self, alike: Sequence[str], workers: Mapping[str, WorkerStatus]) -> AlikeWorks:
        """What the request costs those of a group (`KeptFleet.alike`) that are among `workers`.

        Time grows with the holders in the group.
        """
        first = next((uid for uid in alike if uid in workers), None)
        if first is None:
            return AlikeWorks(None, {})
        group = self._group(workers[first].hello)
        if group is None:
            return AlikeWorks(self._work(workers[first]), {})
        cold = next((uid for uid in alike if uid in workers and uid not in group.warm), None)
        return AlikeWorks(
            self._work(workers[cold]) if cold is not None else None,
            {uid: self._warm_work(group, workers[uid]) for uid in group.warm if uid in workers},
        )

    def tie_key(self, workers: Mapping[str, WorkerStatus]) -> bytes:
        """The first block of the first prompt that none of `workers` holds; the whole prompt if all are held.

        Only resident blocks count here, not pending ones: every router sees the same residents, so that
        requests with the same new prefix meet at the same worker, whichever router they came through.
        """
        groups = {key: group for key, group in self._groups.items() if group is not None}
        if not groups:
            return self._prompts.whole_key
        held_blocks = max(
            (
                blocks
                for group in groups.values()
                for uid, blocks in group.matches[0].items()
                if uid in workers and workers[uid].precise
            ),
            default=0,
        )
        _, hashes = min((key[0], group.prompts[0].hashes) for key, group in groups.items())
        return hashes[held_blocks] if held_blocks < len(hashes) else self._prompts.whole_key

    def _work(self, worker: WorkerStatus) -> Work:
        prediction = self.prediction(worker)
        return Work(prediction.uncached_tokens, prediction.needed_blocks, self._prompts.sequences)

    def _warm_work(self, group: _Group, worker: WorkerStatus) -> Work:
        uid, blocks = worker.endpoint.uid, 0
        if len(group.prompts) == 1 and worker.precise:
            blocks = group.matches[0].get(uid, 0)
        if not blocks or self._computes(uid, group.prompts[0], blocks):
            return self._work(worker)
        work = group.works.get(blocks)
        if work is None:
            work = group.works[blocks] = self._work(worker)
        return work

    def _computes(self, uid: str, prompt: HashedPrompt, position: int) -> bool:
        """Whether a worker is computing the block of a prompt at `position`."""
        hashes = prompt.hashes
        return position < len(hashes) and self._pending.has_entry(uid, hashes[position])

    def _group(self, hello: Hello | None) -> _Group | None:
        """The group of a worker; None for one whose tokenizer is not known."""
        if hello is None:
            return None
        key = (hello.identity, hello.block_size_tokens, hello.tokenizer_digest)
        try:
            return self._groups[key]
        except KeyError:
            group = self._groups[key] = self._new_group(hello)
            return group

    def _new_group(self, hello: Hello) -> _Group | None:
        prompts = self._prompts.hashed(hello)
        if prompts is None:
            return None
        matches = [self._index.matches(prompt.hashes) for prompt in prompts]
        warm = set().union(*matches)
        for prompt in prompts:
            if prompt.hashes:
                warm.update(self._pending.workers_beginning(prompt.hashes[0]))
        return _Group(prompts, matches, warm, {}, (0,) * len(matches), {})
