"""When the epoch of a worker counts as ended: its process is gone, and was not about to go."""

from collections.abc import AsyncGenerator

import msgspec
import pytest

from warmfleet_contracts.cache.kv_events import LoadReport
from warmfleet_contracts.cache.start_phases import StartPhases
from warmfleet_router.discovery.base import Discovered, Endpoint
from warmfleet_router.discovery.static import StaticDiscovery
from warmfleet_router.errors import StreamUnavailableError
from warmfleet_router.workers.event_stream import StreamTiming, WorkerStream
from warmfleet_router.workers.fleet import Fleet
from warmfleet_router.workers.prefix_index import PrefixIndex
from warmfleet_testing.engine.modelled_worker import ModelledWorker

ENDPOINT = Endpoint(uid="w0", name="w0", url="http://127.0.0.1:1")
NONCE = b"n" * 16


class Followed:
    """A stream that is open, and the epochs that it reported as ended."""

    def __init__(self) -> None:
        self.worker = ModelledWorker("w0")
        self.ended: list[tuple[str, str]] = []
        self.stream = WorkerStream(
            ENDPOINT,
            PrefixIndex(),
            StreamTiming(),
            on_ended=lambda uid, epoch: self.ended.append((uid, epoch)),
        )
        self.connect()

    def connect(self) -> None:
        epoch, after = self.stream.opening(NONCE)
        for message in self.worker.answer(epoch, after, NONCE):
            self.stream.received(message, 0.0)


def test_a_worker_to_which_no_connection_can_be_made_has_ended() -> None:
    followed = Followed()

    followed.stream.lost("closed", 1.0)
    followed.stream.lost("fell silent", 1.1, is_silent=True)
    assert followed.ended == []
    followed.stream.lost("refused", 1.2, is_down=True)

    assert followed.ended == [("w0", followed.worker.epoch)]


def test_another_epoch_ends_the_last_one() -> None:
    followed = Followed()
    first = followed.worker.epoch

    followed.stream.lost("closed", 1.0)
    followed.connect()
    assert followed.ended == []
    followed.stream.lost("closed", 2.0)
    followed.worker.restart()
    followed.connect()

    assert followed.ended == [("w0", first)]


def test_the_end_of_a_draining_worker_is_not_reported() -> None:
    followed = Followed()
    followed.worker.load = LoadReport(total_blocks=10, draining=True)
    followed.stream.received(followed.worker.load_frame(), 0.5)

    followed.stream.lost("closed", 1.0)
    followed.stream.lost("refused", 1.1, is_down=True)

    assert followed.ended == []


class RefusedSource:
    """Nothing listens at any address."""

    async def open(self, *_: object) -> AsyncGenerator[bytes, None]:
        raise StreamUnavailableError("the worker refused the connection", is_down=True)
        yield b""


@pytest.mark.parametrize("was_known", [False, True])
async def test_a_worker_that_leaves_the_list_has_ended(was_known: bool) -> None:
    ended: list[tuple[str, str]] = []
    fleet = Fleet(
        StaticDiscovery([ENDPOINT]), RefusedSource(), on_ended=lambda uid, epoch: ended.append((uid, epoch))
    )
    await fleet.reconcile(Discovered((ENDPOINT,)))
    worker = ModelledWorker("w0")
    if was_known:
        stream = fleet._streams["w0"]
        for message in worker.answer(*stream.opening(NONCE), NONCE):
            stream.received(message, 0.0)

    await fleet.reconcile(Discovered(()))
    await fleet.stop()

    assert ended == ([("w0", worker.epoch)] if was_known else [])


def test_the_phases_of_a_start_belong_to_their_epoch() -> None:
    followed = Followed()
    start = StartPhases(process=0.4, load=1.5)

    followed.stream.received(msgspec.structs.replace(followed.worker.load_frame(), start=start), 1.0)
    followed.stream.received(followed.worker.load_frame(), 2.0)
    assert followed.stream.start == start

    followed.worker.restart()
    followed.stream.lost("closed", 3.0)
    followed.connect()
    assert followed.stream.start == StartPhases()
