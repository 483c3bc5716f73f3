"""The blocks in vLLM's prefix cache under warmfleet's hashes, kept by vLLM's own events. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from warmfleet_contracts.cache.blocks import NO_SALT, BlockHash, CacheIdentity, block_hashes, block_root
from warmfleet_contracts.cache.resident import ChangeBuffer
from warmfleet_contracts.errors import WarmfleetError
from warmfleet_worker.vllm_engine.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    Event,
)

DEVICE_MEDIUM: Final = "GPU"
"""vLLM's name for the memory that it computes in, on a CPU too."""
PREFIX_KINDS: Final = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of cache whose blocks are found by their prefix alone."""


class EventsLostError(WarmfleetError):
    """What vLLM holds can no longer be derived from its events."""


class UnfitCacheError(WarmfleetError):
    """vLLM caches in a form that routers cannot predict."""


@dataclass(slots=True)
class _Block:
    block_hash: BlockHash
    copies: int = 1


def salt_text(salt: bytes) -> str | None:
    """`salt` as vLLM's `cache_salt`; None for no salt."""
    return salt.hex() if salt else None


class ResidentBlocks:
    """Applies vLLM's events and collects what changed for routers, in `changes`.

    vLLM keeps equal blocks of sequences that ran at once as copies, and reports each: a block is stored with
    the first and removed with the last. Bounded by vLLM's pool.

        resident.apply(decode_batch(payload))
        cleared, stored, removed = resident.changes.take()
    """

    def __init__(self, identity: CacheIdentity, block_size_tokens: int, total_blocks: int) -> None:
        self.changes = ChangeBuffer()
        self.copies = 0
        """Blocks of vLLM's pool in the prefix cache, each copy counted."""
        self.evicted_blocks = 0
        """Copies that were evicted so far."""
        self._identity = identity
        self._block_size_tokens = block_size_tokens
        self._total_blocks = total_blocks
        self._blocks: dict[EngineHash, _Block] = {}
        self._hashes: set[BlockHash] = set()
        self._awaits_clear = False

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block_hash: object) -> bool:
        return block_hash in self._hashes

    def matched_tokens(self, hashes: Sequence[BlockHash]) -> int:
        """Tokens of the longest prefix that is in the cache, of a prompt with these block hashes."""
        for index, block_hash in enumerate(hashes):
            if block_hash not in self._hashes:
                return index * self._block_size_tokens
        return len(hashes) * self._block_size_tokens

    def apply(self, events: Iterable[Event]) -> None:
        """Apply the events of one step.

        Raises:
            EventsLostError: they do not fit what was reported before; only `clear` helps.
            UnfitCacheError: they are of a cache that routers cannot predict.
        """
        for event in events:
            match event:
                case AllBlocksCleared():
                    if not self._awaits_clear:
                        self._drop_all()
                    self._awaits_clear = False
                case _ if self._awaits_clear:
                    continue  # of blocks that are gone
                case BlockStored():
                    self._store(event)
                case BlockRemoved(block_hashes=hashes, medium=medium):
                    if medium in {None, DEVICE_MEDIUM}:
                        for engine_hash in hashes:
                            self._remove(engine_hash)

    def clear(self) -> None:
        """The cache is being cleared: vLLM's own event of it follows, after those of steps before."""
        self._drop_all()
        self._awaits_clear = True

    def _drop_all(self) -> None:
        self._blocks.clear()
        self._hashes.clear()
        self.copies = 0
        self.changes.clear()

    def _store(self, event: BlockStored) -> None:
        if event.medium not in {None, DEVICE_MEDIUM}:
            return
        if event.kv_cache_spec_kind not in PREFIX_KINDS:
            raise UnfitCacheError(
                f"vLLM caches this model's blocks as {event.kv_cache_spec_kind}: hits cannot be predicted; "
                "set kvCache.prefixCaching: Disabled"
            )
        size = self._block_size_tokens
        if event.block_size != size or len(event.token_ids) != size * len(event.block_hashes):
            raise UnfitCacheError(
                f"vLLM reports {len(event.block_hashes)} blocks of {event.block_size} tokens "
                f"for {len(event.token_ids)} tokens, expected blocks of {size}"
            )
        hashes = block_hashes(self._parent(event), event.token_ids, size)
        for engine_hash, block_hash in zip(event.block_hashes, hashes, strict=True):
            self._add(engine_hash, block_hash)

    def _parent(self, event: BlockStored) -> BlockHash:
        if event.parent_block_hash is None:
            keys = event.extra_keys[0] if event.extra_keys else None
            return block_root(self._identity, salt=_salt(keys))
        parent = self._blocks.get(event.parent_block_hash)
        if parent is None:
            raise EventsLostError("vLLM stored blocks after one that it never reported")
        return parent.block_hash

    def _add(self, engine_hash: EngineHash, block_hash: BlockHash) -> None:
        self.copies += 1
        if self.copies > self._total_blocks:
            raise EventsLostError(f"vLLM reported more blocks than its {self._total_blocks}")
        block = self._blocks.get(engine_hash)
        if block is None:
            self._blocks[engine_hash] = _Block(block_hash)
            self._hashes.add(block_hash)
            self.changes.store(block_hash)
        elif block.block_hash == block_hash:
            block.copies += 1
        else:
            raise EventsLostError("vLLM reported one hash for two different blocks")

    def _remove(self, engine_hash: EngineHash) -> None:
        block = self._blocks.get(engine_hash)
        if block is None:
            raise EventsLostError("vLLM removed a block that it never reported")
        self.copies -= 1
        self.evicted_blocks += 1
        block.copies -= 1
        if not block.copies:
            del self._blocks[engine_hash]
            self._hashes.discard(block.block_hash)
            self.changes.remove(block.block_hash)


def _salt(keys: Sequence[object] | None) -> bytes:
    """The salt among what a first block's hash depends on besides its tokens: there is nothing else.

    Raises:
        UnfitCacheError: there is, such as an adapter or an image.
    """
    if not keys:
        return NO_SALT
    match keys:
        case [str(text)]:
            try:
                return bytes.fromhex(text)
            except ValueError:
                pass
    raise UnfitCacheError("vLLM's blocks depend on more than tokens and salt: hits cannot be predicted")
