"""A request's prompts, matched for all workers at once.

A prompt is matched once per cache identity. What is predicted of a worker depends on nothing else than how
much of the prompts it holds, unless it is computing the next block: so workers that hold equally much share
one prediction.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from warmfleet_contracts.cache.kv_events import Hello
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
    """Workers that hold or compute the first block of a prompt."""
    by_blocks: dict[tuple[int, ...], Prediction]
    """What is predicted of workers that compute nothing of the prompts, by the blocks that they hold."""
    cold: tuple[int, ...]
    """Blocks of a worker that holds none."""


class MatchedPrompts:
    """What workers have cached of one request's prompts, as index and pending blocks are now."""

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
        group = self._group(worker)
        held = self._held(group, worker) if group is not None else None
        if group is None or held is None:
            return self._predictor.predict(worker, self._prompts)
        found = group.by_blocks.get(held)
        if found is None:
            found = group.by_blocks[held] = self._predictor.predict(worker, self._prompts)
        return found

    def least_uncached_tokens(self, workers: Mapping[str, WorkerStatus]) -> dict[str, int]:
        """So many prompt tokens, or more, each worker would have to compute; by uid."""
        return {uid: self._least_uncached_tokens(uid, self._group(worker)) for uid, worker in workers.items()}

    def _least_uncached_tokens(self, uid: str, group: "_Group | None") -> int:
        if group is None or len(group.prompts) > 1:
            return 0
        prompt = group.prompts[0]
        tokens = prompt.tokens * prompt.copies
        if uid not in group.warm:
            return tokens
        blocks = group.matches[0].get(uid, 0)
        if blocks < len(prompt.hashes) and self._pending.has_entry(uid, prompt.hashes[blocks]):
            return 0
        return tokens - min(blocks * prompt.block_size_tokens, prompt.cacheable_tokens)

    def tie_key(self, workers: Mapping[str, WorkerStatus]) -> bytes:
        """The first block of the first prompt that none of `workers` holds; the whole prompt if all are held.

        Only resident blocks count here, not pending ones: every router sees the same residents, so that
        requests with the same new prefix meet at the same worker, whichever router they came through. Each of
        `workers` was asked for before.
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

    def _held(self, group: _Group, worker: WorkerStatus) -> tuple[int, ...] | None:
        """Blocks of each prompt that a worker holds; None if it computes the next, or is not precise."""
        uid = worker.endpoint.uid
        if not self._is_precise(worker):
            return None
        if uid not in group.warm:
            return group.cold
        held = tuple(matches.get(uid, 0) for matches in group.matches)
        for prompt, blocks in zip(group.prompts, held, strict=True):
            if blocks < len(prompt.hashes) and self._pending.has_entry(uid, prompt.hashes[blocks]):
                return None
        return held

    def _is_precise(self, worker: WorkerStatus) -> bool:
        return worker.precise and self._index.is_precise(worker.endpoint.uid)

    def _group(self, worker: WorkerStatus) -> _Group | None:
        """The group of a worker; None for one whose tokenizer is not known."""
        hello = worker.hello
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
                warm.update(self._pending.workers_with(prompt.hashes[0]))
        return _Group(prompts, matches, warm, {}, (0,) * len(matches))
