"""Why tokens missed, at real workers: equal to an oracle that follows the workers' event streams itself."""

import asyncio
import random
import secrets
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from warmfleet_contracts.cache.blocks import CacheIdentity, block_hashes, block_root, tenant_salt
from warmfleet_contracts.cache.contract_versions import ACCEPTED_VERSIONS, stated_versions
from warmfleet_contracts.cache.fleet_totals import FLEET_TOTALS_PATH, decode_totals
from warmfleet_contracts.cache.kv_events import Frame, MessageReader
from warmfleet_contracts.cache.worker_api import KV_EVENTS_PATH, NONCE_HEADER, VERSIONS_HEADER
from warmfleet_router.discovery.base import Discovered, Endpoint
from warmfleet_router.economics.misses import MissCause
from warmfleet_router.routing.slow_workers import SlowWorkerSettings
from warmfleet_testing.cache.miss_oracle import MissOracle
from warmfleet_testing.engine.worker_process import (
    TINY_NAME,
    WorkerProcess,
    running_worker,
    tiny_served_model,
)
from warmfleet_testing.router.router_fixture import SALT_KEY, RunningRouter, running_router

BLOCK_TOKENS: Final = 16
TOKEN: Final = "token-of-all-workers"
KV_CACHE_BYTES: Final = "1500000"
"""Too few blocks for all that is asked, so that some are evicted."""
CONVERSATIONS: Final = 24
NEVER_SLOW: Final = SlowWorkerSettings(ratio=1e9)
"""On a busy machine a worker would be ejected as slow, and all requests go to the other one."""


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, WorkerProcess]]:
    """Two workers of one revision, and one of the next."""
    home = tmp_path_factory.mktemp("models")
    old, new = tiny_served_model(home / "old"), tiny_served_model(home / "new", intermediate_size=48)
    with ExitStack() as stack:
        started = {
            uid: stack.enter_context(
                running_worker(
                    model, "--uid", uid, "--kv-cache-bytes", KV_CACHE_BYTES, token=TOKEN, wait=False
                )
            )
            for uid, model in (("w0", old), ("w1", old), ("w2", new))
        }
        for worker in started.values():
            worker.wait_until_ready()
        yield started


class WatchedFleet:
    """A router in front of some of the workers, and an oracle that reads the streams of the same ones."""

    def __init__(self, router: RunningRouter, workers: dict[str, WorkerProcess]) -> None:
        self.router = router
        self.workers = workers
        self.oracle = MissOracle(BLOCK_TOKENS)
        self.followers: dict[str, asyncio.Task[None]] = {}
        self.received: list[tuple[str, Frame]] = []
        """Since the last request began; the oracle gets them once that is counted."""
        self.positions: dict[str, tuple[str, int]] = {}
        self.identities: dict[str, bytes] = {}
        self.salt = tenant_salt(SALT_KEY, "anonymous")

    async def serve_with(self, *uids: str) -> None:
        """These workers, and no others, from now on."""
        fleet = self.router.router.workers.fleet
        await fleet.reconcile(
            Discovered(
                tuple(
                    Endpoint(uid=uid, name=uid, url=self.workers[uid].url, token=TOKEN.encode())
                    for uid in uids
                )
            )
        )
        for uid in self.followers.keys() - set(uids):
            self.followers.pop(uid).cancel()
            self.oracle.gone(uid)
            del self.positions[uid]
        for uid in set(uids) - self.followers.keys():
            self.followers[uid] = asyncio.create_task(self._follow(uid))
        await self.router.until_known(len(uids))
        await self.settle()
        self.identities = {view.endpoint.uid: view.identity for view in fleet.workers()}

    async def ask(self, prompt: list[int]) -> None:
        status, headers, body = await self.router.ask(prompt, model=TINY_NAME, max_tokens=4, ignore_eos=True)
        assert status == 200, body
        _, decision = await self.router.get(f"/debug/decisions/{headers['x-warmfleet-decision']}")
        self._count(prompt, decision)
        await self.settle()

    async def settle(self) -> None:
        """Until nothing runs, and router and oracle know all that the workers hold."""
        await self.router.until_idle()
        await asyncio.sleep(0.04)  # what the engine reported last may not have reached the worker's server
        index = self.router.router.workers.fleet.index
        for uid in self.followers:
            known = self.workers[uid].wait_until_idle()
            position = (known["epoch"], known["seq"])
            await self.router.until(
                lambda uid=uid, position=position: index.position(uid) == self.positions.get(uid) == position
            )
        for uid, frame in self.received:
            self.oracle.frame(uid, frame)
        self.received.clear()

    def _count(self, prompt: list[int], decision: dict[str, Any]) -> None:
        identity = self.identities[decision["uid"]]
        self.oracle.missed(
            decision["uid"],
            self._hashes(identity, prompt),
            [self._hashes(other, prompt) for other in {*self.identities.values()} - {identity}],
            prompt_tokens=decision["actual_prompt_tokens"],
            cached_tokens=decision["actual_cached_tokens"],
        )

    def _hashes(self, identity: bytes, prompt: list[int]) -> list[bytes]:
        return [*block_hashes(block_root(CacheIdentity(identity), salt=self.salt), prompt, BLOCK_TOKENS)]

    async def _follow(self, uid: str) -> None:
        headers = {
            "authorization": f"Bearer {TOKEN}",
            NONCE_HEADER: secrets.token_hex(16),
            VERSIONS_HEADER: stated_versions(ACCEPTED_VERSIONS),
        }
        reader = MessageReader()
        async with self.router.http.get(self.workers[uid].url + KV_EVENTS_PATH, headers=headers) as response:
            async for data in response.content.iter_any():
                for message in reader.feed(data):
                    if isinstance(message, Frame):
                        self.received.append((uid, message))
                        if not message.snapshot_left:
                            self.positions[uid] = (message.epoch, message.seq)


@asynccontextmanager
async def watched_fleet(workers: dict[str, WorkerProcess], home: Path) -> AsyncGenerator[WatchedFleet, None]:
    async with AsyncExitStack() as stack:
        router = await stack.enter_async_context(
            running_router([], home, wait_ready=False, policy="RoundRobin", outliers=NEVER_SLOW)
        )
        fleet = WatchedFleet(router, workers)
        yield fleet
        for follower in fleet.followers.values():
            follower.cancel()
        await asyncio.gather(*fleet.followers.values(), return_exceptions=True)


async def test_missed_tokens_have_the_causes_that_the_workers_events_show(
    workers: dict[str, WorkerProcess], tmp_path: Path
) -> None:
    draw = random.Random(5)
    conversations = [[number + 1] * 20 for number in range(CONVERSATIONS)]

    async with watched_fleet(workers, tmp_path) as fleet:
        # Growth and evictions; then a worker leaves; then another revision joins.
        for uids, requests in ((("w0", "w1"), 100), (("w0",), 40), (("w0", "w2"), 60)):
            await fleet.serve_with(*uids)
            for _ in range(requests):
                conversation = draw.choice(conversations)
                if len(conversation) < 400:
                    conversation += [draw.randrange(250) for _ in range(draw.randint(0, 60))]
                await fleet.ask(conversation)
        async with fleet.router.http.get(fleet.router.url + FLEET_TOTALS_PATH) as response:
            model = decode_totals(await response.read()).models[TINY_NAME]

    counted = {str(cause): getattr(model.misses, cause) for cause in MissCause}
    expected = {str(cause): fleet.oracle.tokens[cause] for cause in MissCause}
    assert sum(counted.values()) == model.prompt_tokens - model.cached_tokens
    assert counted == expected
    assert min(expected.values()) > 100, expected
    assert model.cached_tokens > 1_000
