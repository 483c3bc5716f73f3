"""Beginnings of prompts that came more than once, with their token ids and how often they come.

A prefix is what a prompt shares with prompts before it: as far as its blocks are, or were, held by a worker.
Uses are counted with decay: a use weighs half after `HALF_LIFE_SECONDS`, so the count is a rate. A prefill
takes time in proportion to its tokens, and saves that time at each use. So among prefixes that do not all fit
into the time that there is, those with the highest rate save most, however long they are.

The ids are what tenants wrote: they stay in memory, in no log, no answer and no file.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.prewarm import MAX_PREFIX_TOKENS

MAX_HOT_PREFIXES: Final = 512
MAX_HOT_BYTES: Final = 32 * 1024 * 1024
"""Of token ids: eight million tokens."""
HALF_LIFE_SECONDS: Final = 120.0
_KEPT_SHARE: Final = 7 / 8
"""Of both bounds, once one of them is exceeded: sorting is not worth it for one prefix at a time."""
_TOKEN_BYTES: Final = 4


class PrefixOrigin(msgspec.Struct, frozen=True):
    """Whose prompts begin so, and at which workers."""

    tenant: str
    salt: bytes
    model: str
    """As requests name it."""
    tokenizer_digest: str
    deployment: str = ""
    """The ModelDeployment whose workers got them, `namespace/name`; empty outside a cluster."""


class HotPrefix(msgspec.Struct, frozen=True, gc=False):
    """A prefix, and how often prompts began with it by `used_at`."""

    block_hash: BlockHash
    """Of its last block."""
    origin: PrefixOrigin
    token_ids: "array[int]"
    """As u32."""
    uses: float
    """With decay, by `used_at`."""
    used_at: float
    """Of the last one, in seconds of the caller's clock."""

    @property
    def size_bytes(self) -> int:
        return _TOKEN_BYTES * len(self.token_ids)

    def uses_at(self, now: float) -> float:
        """Decayed until then, in seconds of the same clock."""
        return self.uses * math.exp2((self.used_at - now) / HALF_LIFE_SECONDS)

    def uses_per_second(self, now: float) -> float:
        """The steady rate that leaves so many uses."""
        return self.uses_at(now) * math.log(2) / HALF_LIFE_SECONDS


class HotPrefixes:
    """The prefixes that came most often lately, bounded in number and bytes.

    hot.used(block_hash, origin, lambda: token_ids, now)
    hot.best(tokenizer_digest, served_names, now, deployment="default/chat")
    """

    def __init__(self, max_prefixes: int = MAX_HOT_PREFIXES, max_bytes: int = MAX_HOT_BYTES) -> None:
        self._max_prefixes = max_prefixes
        self._max_bytes = max_bytes
        self._prefixes: dict[BlockHash, HotPrefix] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._prefixes)

    @property
    def size_bytes(self) -> int:
        """Of all token ids."""
        return self._bytes

    def used(
        self,
        block_hash: BlockHash,
        origin: PrefixOrigin,
        token_ids: Callable[[], "array[int]"],
        now: float,
    ) -> None:
        """A prompt began with the prefix whose last block has this hash.

        `token_ids` is called for a prefix that is not known yet.
        """
        known = self._prefixes.get(block_hash)
        if known is not None:
            uses = known.uses_at(now) + 1.0
            self._prefixes[block_hash] = HotPrefix(block_hash, origin, known.token_ids, uses, now)
            return
        prefix = HotPrefix(block_hash, origin, token_ids(), 1.0, now)
        if len(prefix.token_ids) > MAX_PREFIX_TOKENS:
            return
        self._prefixes[block_hash] = prefix
        self._bytes += prefix.size_bytes
        if len(self._prefixes) > self._max_prefixes or self._bytes > self._max_bytes:
            self._shed(now)

    def best(
        self, tokenizer_digest: str, models: Collection[str], now: float, *, deployment: str = ""
    ) -> list[HotPrefix]:
        """Prefixes of prompts to these models of a deployment, those that come most often first.

        A name may get another owner, in another namespace, who is to see no prompt that came before.
        """
        found = [
            prefix
            for prefix in self._prefixes.values()
            if prefix.origin.tokenizer_digest == tokenizer_digest
            and prefix.origin.model in models
            and prefix.origin.deployment == deployment
        ]
        found.sort(key=lambda prefix: prefix.uses_at(now), reverse=True)
        return found

    def _shed(self, now: float) -> None:
        """Keep seven eighths, so that tenants have equal parts of it: each loses its least used first."""
        ranked = sorted(self._prefixes.items(), key=lambda item: item[1].uses_at(now), reverse=True)
        places = in_equal_parts(
            [prefix for _, prefix in ranked],
            max_prefixes=int(_KEPT_SHARE * self._max_prefixes),
            max_bytes=int(_KEPT_SHARE * self._max_bytes),
        )
        self._prefixes = dict(ranked[place] for place in places)
        self._bytes = sum(prefix.size_bytes for prefix in self._prefixes.values())


def in_equal_parts(ranked: Sequence[HotPrefix], *, max_prefixes: int, max_bytes: int) -> list[int]:
    """Places of the prefixes that fit into both bounds, in the order that they have.

    Tenants have equal parts of what fits: each loses its last ones first.
    """
    of_tenant: Counter[str] = Counter()
    shares: list[int] = []
    for prefix in ranked:
        # Each costs a place, too: many short ones are no smaller a part than a long one.
        of_tenant[prefix.origin.tenant] += prefix.size_bytes + max_bytes // max(max_prefixes, 1)
        shares.append(of_tenant[prefix.origin.tenant])
    kept: list[int] = []
    for place in sorted(range(len(ranked)), key=shares.__getitem__):
        if len(kept) < max_prefixes and ranked[place].size_bytes <= max_bytes:
            kept.append(place)
            max_bytes -= ranked[place].size_bytes
    return sorted(kept)
