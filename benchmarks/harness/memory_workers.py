"""Workers that exist only as messages: what their event streams carry, read from memory."""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.kv_events import (
    SNAPSHOT_CHUNK_HASHES,
    Frame,
    Hello,
    LoadReport,
    ResidentDigest,
    StepTimeFit,
    encode_message,
)
from warmfleet_router.discovery.base import Endpoint

MODEL: Final = "benchmark"
IDENTITY: Final = b"benchmark-cache!"
BLOCK_TOKENS: Final = 16


class MemorySource:
    """Event streams of workers that exist only here."""

    def __init__(self) -> None:
        self.messages: dict[str, list[bytes]] = {}
        """What each worker sends when it is connected, by uid."""
        self.streams: dict[str, asyncio.Queue[bytes]] = {}

    async def open(
        self, endpoint: Endpoint, epoch: str, after: int, nonce: bytes, versions: AbstractSet[int]
    ) -> AsyncGenerator[bytes, None]:
        del epoch, after, nonce, versions
        stream = self.streams[endpoint.uid] = asyncio.Queue()
        for message in self.messages[endpoint.uid]:
            yield message
        while True:
            yield await stream.get()


def digest_of(hashes: Sequence[BlockHash]) -> ResidentDigest:
    """Count and exclusive-or of a set."""
    xor = 0
    for block_hash in hashes:
        xor ^= int.from_bytes(block_hash, "little")
    return ResidentDigest(len(hashes), xor.to_bytes(16, "little"))


def hello(uid: str) -> bytes:
    """The first message of a worker without a token."""
    return encode_message(
        Hello(
            uid=uid,
            identity=IDENTITY,
            block_size_tokens=BLOCK_TOKENS,
            window_tokens=0,
            epoch="e",
            served_names=[MODEL],
            tokenizer_digest="t",
            max_model_length_tokens=131_072,
            proof=b"",
        )
    )


def snapshot(hashes: Sequence[BlockHash], digest: ResidentDigest) -> list[bytes]:
    """All blocks of a worker, as it sends them to a router that knows none."""
    chunks = range(0, max(len(hashes), 1), SNAPSHOT_CHUNK_HASHES)
    return [
        encode_message(
            Frame(
                epoch="e",
                seq=1,
                stored=list(hashes[start : start + SNAPSHOT_CHUNK_HASHES]),
                snapshot_left=len(chunks) - 1 - number,
                digest=digest,
            )
        )
        for number, start in enumerate(chunks)
    ]


def report(draw: random.Random, digest: ResidentDigest, *, is_idle: bool) -> bytes:
    """A load report: of an idle worker, or of one somewhere between idle and busy."""
    running = 0 if is_idle else draw.randrange(48)
    speed = 1.0 if is_idle else draw.uniform(0.9, 1.1)
    load = LoadReport(
        running_sequences=running,
        max_running_sequences=256,
        queued_uncached_tokens=0 if is_idle else draw.choice((0, 0, 0, 500, 2000)),
        context_tokens=running * 1500,
        total_blocks=100_000,
        pinned_blocks=running * 100,
        step_time=StepTimeFit(
            base_seconds=0.008 * speed,
            per_prefill_token_seconds=0.00004 * speed,
            per_decode_sequence_seconds=0.0001 * speed,
            per_context_token_seconds=1e-8 * speed,
            knee_tokens=64,
            samples=1000,
        ),
    )
    return encode_message(Frame(epoch="e", seq=1, load=load, digest=digest))
