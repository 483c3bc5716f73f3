"""The full log of what workers stored and removed, read beside the router, and the causes of misses by it."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx

from warmfleet_cli.bench.client import benchmark_client
from warmfleet_contracts.cache.blocks import CacheIdentity, block_hashes, block_root
from warmfleet_contracts.cache.contract_versions import ACCEPTED_VERSIONS, stated_versions
from warmfleet_contracts.cache.kv_events import Frame, MessageReader
from warmfleet_contracts.cache.worker_api import KV_EVENTS_PATH, NONCE_HEADER, VERSIONS_HEADER
from warmfleet_testing.cache.miss_oracle import MissOracle
from warmfleet_testing.engine.worker_process import WorkerProcess


class LoggedFrame(NamedTuple):
    """A frame of a worker, with when it arrived, in seconds since the epoch."""

    at: float
    uid: str
    frame: Frame


class EventLog:
    """All frames of workers of one cache identity, without tokens; made by `event_log`."""

    def __init__(self, workers: Mapping[str, WorkerProcess]) -> None:
        self._workers = workers
        self._frames: list[LoggedFrame] = []
        described = next(iter(workers.values())).cache()
        self._identity = CacheIdentity(bytes.fromhex(described["identity"]))
        self._block_size: int = described["block_size_tokens"]

    async def follow(self, client: httpx.AsyncClient, uid: str) -> None:
        """Log the frames of one worker until cancelled."""
        headers = {NONCE_HEADER: secrets.token_hex(16), VERSIONS_HEADER: stated_versions(ACCEPTED_VERSIONS)}
        reader = MessageReader()
        url = self._workers[uid].url + KV_EVENTS_PATH
        async with client.stream("GET", url, headers=headers, timeout=None) as response:
            async for data in response.aiter_raw():
                now = time.time()
                self._frames += (
                    LoggedFrame(now, uid, message)
                    for message in reader.feed(data)
                    if isinstance(message, Frame)
                )

    def missed_tokens(
        self, decisions: Sequence[dict[str, Any]], prompts: Mapping[str, Sequence[int]], salt: bytes
    ) -> Counter[str]:
        """Prompt tokens that were computed, by why: what each cache held when the router had decided.

        `prompts` has the token ids by the request's id.
        """
        oracle, root = MissOracle(self._block_size), block_root(self._identity, salt=salt)
        frames = iter(self._frames)
        frame = next(frames, None)
        for decision in sorted(decisions, key=_dispatched_at):
            while frame is not None and frame.at <= _dispatched_at(decision):
                oracle.frame(frame.uid, frame.frame)
                frame = next(frames, None)
            oracle.missed(
                decision["uid"],
                [*block_hashes(root, prompts[decision["request_id"]], self._block_size)],
                prompt_tokens=decision["actual_prompt_tokens"],
                cached_tokens=decision["actual_cached_tokens"],
            )
        return oracle.tokens


@asynccontextmanager
async def event_log(workers: Mapping[str, WorkerProcess]) -> AsyncGenerator[EventLog, None]:
    """Follow all of them in the block."""
    log = EventLog(workers)
    async with benchmark_client() as client:
        followers = [asyncio.create_task(log.follow(client, uid)) for uid in workers]
        yield log
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)


def _dispatched_at(decision: dict[str, Any]) -> float:
    return float(decision["decided_at"] + decision["dispatched_after_ms"] / 1e3)
