"""What the fleet keeps of its workers between events, against a look at the streams."""

from collections.abc import AsyncGenerator

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warmfleet_contracts.cache.kv_events import LoadReport
from warmfleet_contracts.errors import ContractError
from warmfleet_router.discovery.base import Discovered, Endpoint
from warmfleet_router.discovery.static import StaticDiscovery
from warmfleet_router.workers.fleet import Fleet, serves
from warmfleet_testing.engine.modelled_worker import ModelledWorker, hash_of

NONCE = b"n" * 16
UIDS = ("worker-0", "worker-1")
EVENTS = ("open", "answer", "load", "store", "damage", "lost", "down", "silent", "restart", "drain", "rename")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class SilentSource:
    """Sends nothing: a test hands over the messages itself."""

    async def open(self, *_: object) -> AsyncGenerator[bytes, None]:
        yield b""


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(EVENTS), st.sampled_from(UIDS), st.sampled_from([0.0, 0.3, 0.99, 1.0, 5.0, 13.0])
        ),
        max_size=40,
    )
)
async def test_the_status_of_a_worker_is_that_of_its_stream_at_any_time(
    events: list[tuple[str, str, float]],
) -> None:
    clock = Clock()
    fleet = Fleet(StaticDiscovery([]), SilentSource(), clock=clock)
    workers = {uid: ModelledWorker(uid) for uid in UIDS}
    endpoints = {uid: Endpoint(uid=uid, name=uid, url="http://127.0.0.1:1") for uid in UIDS}
    await fleet.reconcile(Discovered(tuple(endpoints.values()), frozenset({"model-a"})))
    await fleet.stop()

    for event, uid, seconds in events:
        clock.now += seconds
        stream, worker = fleet._streams[uid], workers[uid]
        try:
            match event:
                case "open":
                    stream.opening(NONCE)
                case "answer":
                    for message in worker.answer(*stream.opening(NONCE), NONCE):
                        stream.received(message, clock.now)
                case "load":
                    worker.load = LoadReport(total_blocks=10, running_sequences=int(seconds > 0.5))
                    stream.received(worker.load_frame(), clock.now)
                case "store":
                    stream.received(worker.change(stored=[hash_of(len(worker.history))]), clock.now)
                case "damage":
                    worker.change(stored=[hash_of(1000 + len(worker.history))])
                    stream.received(worker.change(removed=[hash_of(5000)]), clock.now)
                case "lost" | "down":
                    stream.lost("reset", clock.now, is_down=event == "down")
                case "silent":
                    stream.silent()
                case "restart":
                    worker.restart()
                case "drain":
                    worker.load = LoadReport(total_blocks=10, draining=True)
                case "rename":
                    names = ("model-a",) if seconds < 1 else ("model-b",)
                    endpoints[uid] = Endpoint(uid=uid, name=uid, url="http://127.0.0.1:1", served_names=names)
                    await fleet.reconcile(Discovered(tuple(endpoints.values()), frozenset(names)))
        except ContractError as error:
            stream.lost(str(error), clock.now)

        for later in (0.0, 0.5, 1.0, 3.0, 12.0, 12.5):
            clock.now += later
            fresh = {uid: fleet._status(stream, clock.now) for uid, stream in fleet._streams.items()}
            assert fleet.workers() == list(fresh.values())
            assert fleet.workers("model-a") == [
                status for status in fresh.values() if serves(status.endpoint, status.hello, "model-a")
            ]
            clock.now -= later
    await fleet.stop()
