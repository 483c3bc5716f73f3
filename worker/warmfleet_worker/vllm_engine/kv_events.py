"""Cache events as vLLM sends them: MessagePack of the structs in `vllm.distributed.kv_events`."""

from typing import Final

import msgspec

from warmfleet_contracts.decoding import decoded

EngineHash = int | bytes
"""How vLLM names a block: the end of its digest as a number, or the digest."""


class BlockStored(msgspec.Struct, frozen=True, kw_only=True, tag="BlockStored"):
    """Blocks of one sequence, in order, are in the prefix cache. Sent again for each copy of a block."""

    block_hashes: list[EngineHash]
    parent_block_hash: EngineHash | None
    """The block before the first one; None at the start of a sequence."""
    token_ids: list[int]
    """Of all the blocks."""
    block_size: int
    medium: str | None = None
    extra_keys: list[list[object] | None] | None = None
    """What else the hash of each block depends on; that of a first block has the salt."""
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, kw_only=True, tag="BlockRemoved"):
    """One copy of each block was evicted."""

    block_hashes: list[EngineHash]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag="AllBlocksCleared"):
    """The prefix cache is empty."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, frozen=True, array_like=True):
    """The events of one scheduler step."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


def decode_batch(payload: bytes) -> list[Event]:
    """The events of one message.

    Raises:
        ContractError: it is not what vLLM of the tested versions sends.
    """
    return decoded(_decoder.decode, payload, "cache events from vLLM").events


_decoder: Final = msgspec.msgpack.Decoder(EventBatch)
