"""Why tokens of a request would be missed, by who holds its blocks when its worker has just been picked."""

from collections.abc import Callable, Mapping, Sequence

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_router.economics.ghost_list import GhostList
from warmfleet_router.economics.misses import OtherIdentity, PromptCauses, PromptHolders, prompt_causes
from warmfleet_router.routing.picker import PickedWorker
from warmfleet_router.routing.prompt_hashes import HashedPrompt, RequestPrompts
from warmfleet_router.workers.fleet import WorkerStatus
from warmfleet_router.workers.prefix_index import PrefixIndex


class MissCauses:
    """Reads index and ghost list; changes neither. Costs by the prompt's blocks and not by the fleet."""

    def __init__(
        self, index: PrefixIndex, ghosts: GhostList, worker: Callable[[str], WorkerStatus | None]
    ) -> None:
        """`worker` returns a worker's status by its uid."""
        self._index = index
        self._ghosts = ghosts
        self._worker = worker

    def of(self, picked: PickedWorker, prompts: RequestPrompts) -> list[PromptCauses]:
        """Per prompt of a request that was just given to `picked`; none without the worker's tokenizer."""
        own = picked.prediction.prompts
        others = [hashed for hashed in prompts.all_hashed if hashed is not own]
        uid = picked.candidate.uid
        return [
            prompt_causes(
                self._holders(uid, prompt, [hashed[number] for hashed in others]),
                self._ghosts.cause_of_loss,
                self._ghosts.evicted_since,
                predicted_cached_tokens=part.cached_tokens,
            )
            for number, (prompt, part) in enumerate(zip(own, picked.prediction.parts, strict=False))
        ]

    def _holders(self, uid: str, prompt: HashedPrompt, others: Sequence[HashedPrompt]) -> PromptHolders:
        hashes = _cacheable(prompt)
        matches = self._index.matches(hashes)
        worker = self._worker(uid)
        return PromptHolders(
            hashes=hashes,
            block_size_tokens=prompt.block_size_tokens,
            held_blocks=matches.pop(uid, 0),
            held_elsewhere_blocks=self._most_held(matches),
            cache_blocks=worker.load.total_blocks if worker is not None else 0,
            others=[self._other(other) for other in others],
        )

    def _other(self, prompt: HashedPrompt) -> OtherIdentity:
        hashes = _cacheable(prompt)
        return OtherIdentity(hashes, prompt.block_size_tokens, self._most_held(self._index.matches(hashes)))

    def _most_held(self, matches: Mapping[str, int]) -> int:
        """By a worker that may be sent prompts."""
        for uid in sorted(matches, key=matches.__getitem__, reverse=True):
            worker = self._worker(uid)
            if worker is not None and worker.ready:
                return matches[uid]
        return 0


def _cacheable(prompt: HashedPrompt) -> Sequence[BlockHash]:
    return prompt.hashes[: prompt.cacheable_tokens // prompt.block_size_tokens]
