"""No query of the workers room changes anything, after any events."""

from collections.abc import AsyncGenerator
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_router.discovery.base import Discovered, Endpoint
from warmfleet_router.discovery.static import StaticDiscovery
from warmfleet_router.errors import StreamUnavailableError
from warmfleet_router.workers.breakers import Breakers
from warmfleet_router.workers.encoders import MAX_ENCODERS, Encoders
from warmfleet_router.workers.fleet import Fleet
from warmfleet_router.workers.upstream import Upstream
from warmfleet_testing.engine.modelled_worker import ModelledWorker, hash_of
from warmfleet_testing.engine.tiny_tokenizer import tiny_prompt_assets
from warmfleet_testing.router.object_state import unchanged

NONCE = b"n" * 16
HASHES = [hash_of(number) for number in range(8)]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class ClosedSource:
    """No worker answers: a test hands over the messages itself."""

    async def open(
        self, endpoint: Endpoint, epoch: str, after: int, nonce: bytes
    ) -> AsyncGenerator[bytes, None]:
        del endpoint, epoch, after, nonce
        raise StreamUnavailableError("closed")
        yield b""


async def test_no_query_of_a_fleet_with_silent_lost_and_missing_workers_writes() -> None:
    clock = Clock()
    workers = [ModelledWorker(f"worker-{number}") for number in range(3)]
    fleet = Fleet(StaticDiscovery([]), ClosedSource(), clock=clock)
    endpoints = [Endpoint(uid=worker.uid, name=worker.uid, url="http://127.0.0.1:1") for worker in workers]
    await fleet.reconcile(Discovered(tuple(endpoints), frozenset({"model-a", "model-b"})))
    await fleet.stop()
    for worker, stream in zip(workers[:2], fleet._streams.values(), strict=False):
        worker.change(stored=HASHES[:4])
        epoch, after = stream.opening(NONCE)
        for message in worker.answer(epoch, after, NONCE):
            stream.received(message, clock.now)
    fleet._streams["worker-1"].lost("reset", clock.now)

    for seconds in (0.0, 0.5, 2.0, 20.0, 100.0):
        clock.now += seconds
        with unchanged(fleet):
            views = [*fleet.workers(), *fleet.workers("model-a"), fleet.worker("worker-0")]
            assert len(views) > 3
            assert fleet.models() == ["model-a", "model-b"]
            assert fleet.knows_its_models
            for uid in ("worker-0", "worker-1", "worker-2", "unknown"):
                fleet.seconds_since_last_message(uid)
                fleet.index.matched_blocks(uid, HASHES)
                fleet.index.holds(uid, HASHES[0])
                fleet.index.is_precise(uid)
                fleet.index.position(uid)
                fleet.index.suspicion(uid)
                fleet.index.resident_blocks(uid)
            assert fleet.index.blocks == 8
            for stream in fleet._streams.values():
                stream.unready_reason(clock.now)
                stream.is_current(clock.now)
                stream.silence_seconds()


@settings(max_examples=60)
@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["failed", "completed", "answered", "wait"]), st.sampled_from(["a", "b", "c"])
        ),
        max_size=40,
    )
)
def test_no_query_of_the_breakers_writes(events: list[tuple[str, str]]) -> None:
    clock = Clock()
    breakers = Breakers(now=clock)
    for event, uid in events:
        if event == "wait":
            clock.now += 20
            continue
        with breakers.trial(uid, "e") as trial:
            if event == "failed":
                for _ in range(5):
                    breakers.failed(uid, trial._breaker, clock.now, "reset")
            else:
                getattr(trial, event)()

    with unchanged(breakers):
        breakers.ejections(dict.fromkeys("abc", "e"))
        breakers.ejections({"a": "e"})
        for uid in "abcd":
            breakers.status(uid, "e")
            breakers.status(uid, "another epoch")


async def test_no_query_of_the_encoders_writes(tmp_path: Path) -> None:
    encoder = PromptEncoder.from_assets(tiny_prompt_assets())
    encoders = Encoders(tmp_path, Upstream(), list)
    for number in range(MAX_ENCODERS - 1):
        encoders._keep_in_memory(str(number), encoder)

    before = list(encoders._encoders)
    assert [encoders.known(digest) is encoder for digest in ("0", "3", "unknown")] == [True, True, False]
    assert [encoders.is_settled(digest) for digest in ("0", "unknown")] == [True, False]

    assert (list(encoders._encoders), encoders.count) == (before, MAX_ENCODERS - 1)
    await encoders.stop()
