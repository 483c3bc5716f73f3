"""What one router has many newcomers compute, and what becomes of one whose engine ends over it."""

import asyncio
from array import array
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from warmfleet_contracts.cache.kv_events import Frame, Hello, LoadReport
from warmfleet_contracts.cache.prewarm import decode_prewarm
from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.prewarm.hot_prefixes import HotPrefixes, PrefixOrigin
from warmfleet_router.prewarm.prewarmer import Prewarmer
from warmfleet_router.prewarm.worker_prewarms import MOST_OPEN_BYTES, WorkerPrewarms
from warmfleet_router.workers.fleet import WorkerStatus
from warmfleet_router.workers.upstream import UpstreamUnreachableError

MODEL = "org/model"
DEPLOYMENT = "ours/chat"
LONG = 1024 * 1024
"""Tokens of 4 MiB."""


@dataclass(frozen=True)
class Answer:
    status: int = 200

    async def body(self, _limit_bytes):
        return b"{}"


@dataclass
class HeldUpstream:
    """Workers that answer nothing until `answer` is set, or end without an answer."""

    bodies: list[tuple[str, bytes]] = field(default_factory=list)
    answer: asyncio.Event = field(default_factory=asyncio.Event)
    ends: bool = False
    open: int = 0

    @asynccontextmanager
    async def request(self, endpoint, _method, _path, *, body):
        self.bodies.append((endpoint.uid, body))
        if self.ends:
            raise UpstreamUnreachableError("the worker closed the connection")
        self.open += 1
        try:
            await self.answer.wait()
            yield Answer()
        finally:
            self.open -= 1

    def sent(self, uid):
        """How many prefixes each request to a worker had."""
        return [len(decode_prewarm(body).prefixes) for to, body in self.bodies if to == uid]


def worker(uid):
    hello = Hello(
        uid=uid,
        identity=b"i" * 16,
        block_size_tokens=16,
        window_tokens=0,
        epoch="",
        served_names=[MODEL],
        tokenizer_digest="d",
        max_model_length_tokens=LONG,
        proof=b"",
    )
    return WorkerStatus(
        Endpoint(uid=uid, name=uid, url="http://worker", deployment=DEPLOYMENT),
        hello=hello,
        ready=False,
        unready_reason="",
        precise=True,
        load=LoadReport(),
        reported_at=0.0,
        resident_blocks=0,
        counts=None,
    )


def prewarmer_of(upstream, hot, waiting=()):
    return Prewarmer(
        hot,
        WorkerPrewarms(upstream),
        worker=worker,
        requests_wait=lambda models: not set(waiting).isdisjoint(models),
        is_tenant=lambda _: True,
        now=lambda: 0.0,
        metrics=RouterMetrics(),
    )


def hot_of(*counts, tenant="a", deployment=DEPLOYMENT, hot=None):
    hot = HotPrefixes() if hot is None else hot
    origin = PrefixOrigin(tenant, b"salt", MODEL, "d", deployment)
    for number, count in enumerate(counts):
        hot.used(f"{tenant}{number}".encode(), origin, lambda count=count: array("I", bytes(4 * count)), 0)
    return hot


async def arrive(prewarmer, uid, epoch="1"):
    prewarmer.frame_arrived(uid, Frame(epoch=epoch, seq=0, load=LoadReport()))
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_is_sent_to_many_newcomers_at_once_is_bounded():
    upstream = HeldUpstream()
    prewarmer = prewarmer_of(upstream, hot_of(*[LONG] * 4))
    for number in range(50):
        await arrive(prewarmer, f"w{number}")

    assert len(upstream.bodies) == 50  # each is asked at once, if need be without a prefix
    assert sum(len(body) for _, body in upstream.bodies) <= MOST_OPEN_BYTES + 50 * 1024

    upstream.answer.set()
    await asyncio.sleep(0.01)
    await arrive(prewarmer, "later")
    assert upstream.sent("later") == [4]
    await prewarmer.stop()


async def test_a_worker_that_changes_its_epoch_has_one_request_open():
    upstream = HeldUpstream()
    prewarmer = prewarmer_of(upstream, hot_of(16))
    for epoch in range(100):
        await arrive(prewarmer, "w", str(epoch))

    assert upstream.open == 1
    await prewarmer.stop()


@pytest.mark.parametrize("ends", [True, False])
async def test_an_engine_that_ends_over_its_prefixes_gets_none_in_its_next_life(ends):
    upstream = HeldUpstream(ends=ends)
    prewarmer = prewarmer_of(upstream, hot_of(16))
    await arrive(prewarmer, "w", "1")
    upstream.ends = False
    upstream.answer.set()
    for epoch in "23":
        await arrive(prewarmer, "w", epoch)
    await arrive(prewarmer, "other")

    assert upstream.sent("w") == [1, 0, 1]
    assert upstream.sent("other") == [1]
    await prewarmer.stop()


async def test_a_worker_that_left_is_waited_for_no_longer():
    upstream = HeldUpstream()
    prewarmer = prewarmer_of(upstream, hot_of(16))
    await arrive(prewarmer, "w")
    prewarmer.forget("w")
    await asyncio.sleep(0.01)

    assert upstream.open == 0


@pytest.mark.parametrize(("waiting", "prefixes"), [("other/model", 1), (MODEL, 0)])
async def test_only_requests_that_wait_for_the_newcomer_make_it_ready_at_once(waiting, prefixes):
    upstream = HeldUpstream()
    prewarmer = prewarmer_of(upstream, hot_of(16), waiting=[waiting])
    await arrive(prewarmer, "w")

    assert upstream.sent("w") == [prefixes]
    await prewarmer.stop()


async def test_a_tenant_with_many_prefixes_leaves_others_their_part_of_a_request():
    hot = hot_of(*[99] * 3, tenant="quiet")
    for _ in range(3):
        hot_of(*[100] * 200, tenant="loud", hot=hot)
    upstream = HeldUpstream()
    prewarmer = prewarmer_of(upstream, hot)
    await arrive(prewarmer, "w")

    [(_, body)] = upstream.bodies
    lengths = [len(prefix.token_ids) for prefix in decode_prewarm(body).prefixes]
    assert lengths == [100] * 61 + [99] * 3  # what comes most often is still computed first
    await prewarmer.stop()


async def test_the_next_owner_of_a_name_gets_no_prompts_that_came_to_the_last_one():
    upstream = HeldUpstream()
    prewarmer = prewarmer_of(upstream, hot_of(16, deployment="theirs/chat"))
    await arrive(prewarmer, "w")

    assert upstream.sent("w") == [0]
    await prewarmer.stop()
