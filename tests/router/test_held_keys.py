"""Keys and owners that change while requests are held for a model that sleeps, or wait for a seat."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from warmfleet_contracts.keys import encode_key_file
from warmfleet_router.admission.queue_bounds import NOTHING, AdmissionSettings
from warmfleet_router.api import completions
from warmfleet_testing.router.full_fleet import cancelled, is_empty, occupied, until
from warmfleet_testing.router.full_fleet import held as waiting
from warmfleet_testing.router.planted_keys import PlantedKeys, bearer
from warmfleet_testing.router.router_fixture import RunningRouter, running_router
from warmfleet_testing.router.sleeping_models import SleepingModels
from warmfleet_testing.router.stub_worker import StubWorker, running_stub


@pytest.fixture
def stub() -> Iterator[StubWorker]:
    with running_stub(StubWorker(uid="w0")) as running:
        yield running


@asynccontextmanager
async def asleep(
    home: Path, keys: PlantedKeys
) -> AsyncGenerator[tuple[RunningRouter, SleepingModels, Path], None]:
    """A router that follows a key file, and whose model sleeps; in the end it keeps nothing."""
    models, path = SleepingModels({"stub": 60}), home / "keys.json"
    path.write_bytes(encode_key_file(keys.file))
    settings = {"keys": keys.file, "keys_path": path, "admission": AdmissionSettings(ping_seconds=0.05)}
    async with running_router([], home, discovery=models, wait_ready=False, **settings) as router:
        await router.until(router.router.workers.fleet.models)
        yield router, models, path
        await router.until(lambda: router.router.limits.in_flight == NOTHING)


async def held(router: RunningRouter, count: int) -> None:
    await router.until(lambda: router.router.admission.waking.total.requests == count)


def error_of(body: bytes) -> str:
    """Of a plain answer, or of the last event of a stream."""
    last = body.rstrip().split(b"\n\n")[-1].removeprefix(b"data: ")
    return str(json.loads(last)["error"]["code"])


async def test_a_key_that_is_revoked_while_its_requests_are_held_is_refused(
    tmp_path: Path, stub: StubWorker
) -> None:
    keys = PlantedKeys()
    stays, goes = keys.add("a"), keys.add("a")
    async with asleep(tmp_path, keys) as (router, models, path):
        plain = asyncio.create_task(router.ask("plain", headers=bearer(goes)))
        streamed = asyncio.create_task(router.ask("streamed", stream=True, headers=bearer(goes)))
        other = asyncio.create_task(router.ask("other", headers=bearer(stays)))
        await held(router, 3)
        path.write_bytes(encode_key_file(keys.file.without_key(goes.id)))
        ring = router.router.api.keys
        assert ring is not None
        await router.until(lambda: ring.find(goes.text) is None)
        models.discover(stub)
        answers = await asyncio.gather(plain, streamed, other)

    assert [answers[0][0], answers[2][0]] == [401, 200]
    assert [error_of(answers[0][2]), error_of(answers[1][2])] == ["invalid_api_key"] * 2
    assert [json.loads(body)["prompt"] for body in stub.bodies] == ["other"]


async def test_a_model_that_is_taken_from_a_key_while_its_request_is_held_is_refused(
    tmp_path: Path, stub: StubWorker
) -> None:
    keys = PlantedKeys()
    key = keys.add("a")
    async with asleep(tmp_path, keys) as (router, models, path):
        asking = asyncio.create_task(router.ask("hi", headers=bearer(key)))
        await held(router, 1)
        narrowed = msgspec.structs.replace(keys.file.keys[0], models=("another",))
        path.write_bytes(encode_key_file(msgspec.structs.replace(keys.file, keys=(narrowed,))))
        ring = router.router.api.keys
        assert ring is not None

        def is_narrowed() -> bool:
            found = ring.find(key.text)
            return found is not None and not found[0].may_call("stub")

        await router.until(is_narrowed)
        models.discover(stub)
        status, _, body = await asking

    assert (status, error_of(body)) == (403, "model_not_allowed")
    assert not stub.bodies


async def test_a_key_that_is_revoked_while_its_requests_wait_for_a_seat_is_refused(
    tmp_path: Path, stub: StubWorker
) -> None:
    keys = PlantedKeys()
    stays, goes = keys.add("a"), keys.add("a")
    path = tmp_path / "keys.json"
    path.write_bytes(encode_key_file(keys.file))
    stub.max_running_sequences = 1
    async with running_router([stub], tmp_path, keys=keys.file, keys_path=path) as router:
        stub.faults.hold_headers = True
        first = asyncio.create_task(router.ask("first", headers=bearer(stays)))
        await until(lambda: stub.held == 1)
        stub.faults.hold_headers = False
        asking = [
            asyncio.create_task(router.ask("plain", headers=bearer(goes))),
            asyncio.create_task(router.ask("streamed", stream=True, headers=bearer(goes))),
            asyncio.create_task(router.ask("other", headers=bearer(stays))),
        ]
        await until(lambda: waiting(router).requests == len(asking))
        path.write_bytes(encode_key_file(keys.file.without_key(goes.id)))
        ring = router.router.api.keys
        assert ring is not None
        await router.until(lambda: ring.find(goes.text) is None)
        await cancelled([first])
        answers = await asyncio.gather(*asking)
        await is_empty(router)

    assert [status for status, _, _ in answers] == [401, 401, 200]
    assert [error_of(body) for _, _, body in answers[:2]] == ["invalid_api_key"] * 2
    assert [json.loads(body)["prompt"] for body in stub.bodies] == ["first", "other"]


async def test_a_held_prompt_goes_to_no_owner_who_got_the_name_while_it_was_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = SleepingModels({"stub": 60})
    models.owners = {"stub": "a/first"}
    models.discover()
    with running_stub(StubWorker(uid="w0")) as before, running_stub(StubWorker(uid="w1")) as after:
        async with running_router([], tmp_path, discovery=models, wait_ready=False) as router:
            await router.until(lambda: router.router.workers.fleet.owner("stub"))
            asking = asyncio.create_task(router.ask("secret"))
            await held(router, 1)

            async def decode_after_the_change(body: bytes, decode: Callable[[bytes], object]) -> object:
                models.owners = {"stub": "b/second"}
                models.discover(after)
                fleet = router.router.workers.fleet
                await router.until(
                    lambda: [one.endpoint.uid for one in fleet.workers("stub") if one.ready] == ["w1"]
                )
                return decode(body)

            monkeypatch.setattr(completions, "decode_body", decode_after_the_change)
            models.discover(before)
            status, _, body = await asking

    assert (status, error_of(body)) == (503, "no_replica")
    assert not after.bodies


async def test_a_prompt_that_waits_for_a_seat_goes_to_no_other_owner_of_the_name(tmp_path: Path) -> None:
    models = SleepingModels({"stub": 60})
    models.owners = {"stub": "a/first"}
    with (
        running_stub(StubWorker(uid="w0", max_running_sequences=1)) as before,
        running_stub(StubWorker(uid="w1", max_running_sequences=1)) as after,
    ):
        models.discover(before)
        async with running_router([], tmp_path, discovery=models, wait_ready=False) as router:
            await router.until(lambda: any(worker.ready for worker in router.router.workers.fleet.workers()))
            first = await occupied(router, before, 1)
            asking = asyncio.create_task(router.ask("secret"))
            await until(lambda: waiting(router).requests == 1)
            models.owners = {"stub": "b/second"}
            models.discover(after)
            status, _, body = await asking
            await cancelled(first)

    assert (status, error_of(body)) == (503, "no_replica")
    assert not after.bodies
