"""Why prompts missed, from the full log of what every worker stored and removed: the oracle of miss causes.

Nothing is bounded or forgotten here, and sets are compared by their definition.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from warmfleet_contracts.cache.blocks import cacheable_tokens
from warmfleet_contracts.cache.kv_events import Frame


class Life(NamedTuple):
    """One process of a worker, until its cache is cleared."""

    uid: str
    epoch: str
    clears: int


class MissOracle:
    """Follows all frames of all workers, in order, and counts the tokens that they miss by cause."""

    def __init__(self, block_size_tokens: int) -> None:
        self._size = block_size_tokens
        self._lives: dict[str, Life] = {}
        self._resident: dict[str, set[bytes]] = {}
        self._log: dict[bytes, list[tuple[str, Life]]] = defaultdict(list)
        """Per block all that ever happened to it."""
        self.tokens: Counter[str] = Counter()

    def frame(self, uid: str, frame: Frame) -> None:
        life = self._lives.get(uid)
        if life is None or life.epoch != frame.epoch:
            self.gone(uid)
            life = Life(uid, frame.epoch, 0)
            self._resident[uid] = set()
        elif frame.cleared:
            life = life._replace(clears=life.clears + 1)
            self._resident[uid] = set()
        self._lives[uid] = life
        for verb, hashes in (("stored", frame.stored), ("removed", frame.removed)):
            for block_hash in hashes:
                self._log[block_hash].append((verb, life))
        self._resident[uid] |= set(frame.stored)
        self._resident[uid] -= set(frame.removed)

    def gone(self, uid: str) -> None:
        self._lives.pop(uid, None)
        self._resident.pop(uid, None)

    def missed(
        self,
        uid: str,
        hashes: Sequence[bytes],
        under_others: Iterable[Sequence[bytes]] = (),
        *,
        prompt_tokens: int,
        cached_tokens: int,
    ) -> None:
        """Count a request as what was resident before it: `uid` found so many of its tokens cached.

        `under_others` are the hashes of the same prompt under each other identity of the model.
        """
        others = list(under_others)
        elsewhere = max((self._run(other, hashes) for other in self._resident if other != uid), default=0)
        last = cacheable_tokens(prompt_tokens, self._size)
        for position in range(cached_tokens // self._size, last // self._size):
            cause = "placement" if position < elsewhere else self._cause_of_loss(hashes[position])
            if cause == "compulsory" and any(self._was_seen(other[position]) for other in others):
                cause = "rollout"
            self.tokens[cause] += self._size
        self.tokens["compulsory"] += prompt_tokens - max(last, cached_tokens)

    def _run(self, uid: str, hashes: Sequence[bytes]) -> int:
        resident = self._resident[uid]
        return next((n for n, block_hash in enumerate(hashes) if block_hash not in resident), len(hashes))

    def _cause_of_loss(self, block_hash: bytes) -> str:
        if not self._log[block_hash]:
            return "compulsory"
        verb, life = self._log[block_hash][-1]
        if self._lives.get(life.uid) != life:
            return "lost"
        return "capacity" if verb == "removed" else "compulsory"

    def _was_seen(self, block_hash: bytes) -> bool:
        return bool(self._log[block_hash])
