"""A full fleet over real sockets: how many requests may wait or be in flight, and what the others get."""

import asyncio
import json
from pathlib import Path

import pytest

from warmfleet_router.admission.queue_bounds import AdmissionSettings, Amount
from warmfleet_testing.router.full_fleet import BRISK, cancelled, held, is_empty, occupied, until
from warmfleet_testing.router.planted_keys import PlantedKeys, bearer
from warmfleet_testing.router.router_fixture import running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub


@pytest.mark.parametrize(
    ("bound", "fits"),
    [
        (Amount(3, 10**8, 10**7), 3),
        (Amount(1000, 5000, 10**7), 4),
        (Amount(1000, 10**8, 2500), 2),
    ],
    ids=["requests", "bytes", "tokens"],
)
async def test_the_queue_is_bounded_and_requests_beyond_it_get_retry_after(
    bound: Amount, fits: int, tmp_path: Path
) -> None:
    # given: a full worker, and prompts of 1,000 tokens in about 1,050 bytes
    settings = AdmissionSettings(max_held=bound)
    with running_stub(StubWorker(uid="w0", max_running_sequences=1)) as stub:
        async with running_router([stub], tmp_path, admission=settings) as router:
            first = await occupied(router, stub, 1)
            asking = [asyncio.create_task(router.ask("x" * 1000)) for _ in range(fits + 5)]
            refused = [await done for _, done in zip(range(5), asyncio.as_completed(asking), strict=False)]
            at_most = held(router)
            await cancelled(first)
            answers = await asyncio.gather(*asking)
            await is_empty(router)

    assert at_most.within(bound)
    assert at_most.requests == fits
    for status, headers, body in refused:
        error = json.loads(body)["error"]
        assert (status, error["type"], error["code"]) == (429, "rate_limit_error", "overloaded")
        assert 1 <= int(headers["retry-after"]) <= 60
    assert sorted(status for status, _, _ in answers) == [200] * fits + [429] * 5


async def test_one_tenant_cannot_fill_the_whole_queue(tmp_path: Path) -> None:
    keys = PlantedKeys()
    flooder, light = keys.add("flooder"), keys.add("light")
    settings = AdmissionSettings(max_held=Amount(20, 10**8, 10**7))
    with running_stub(StubWorker(uid="w0", max_running_sequences=1, **BRISK)) as stub:
        async with running_router([stub], tmp_path, keys=keys.file, admission=settings) as router:
            flood = [
                asyncio.create_task(router.ask("hi", stream=True, headers=bearer(flooder))) for _ in range(30)
            ]
            await until(lambda: held(router).requests == 10)
            status, _, _ = await router.ask("hi", headers=bearer(light))
            answers = await asyncio.gather(*flood)

    refused = [json.loads(body)["error"]["code"] for code, _, body in answers if code == 429]
    assert status == 200
    assert len(refused) >= 15
    assert set(refused) == {"tenant_quota_exceeded"}


async def test_a_tenants_requests_and_tokens_in_flight_are_bounded(tmp_path: Path) -> None:
    keys = PlantedKeys()
    few = keys.add("few", max_in_flight_requests=2)
    small = keys.add("small", max_in_flight_tokens=300)
    free = keys.add("free")
    with running_stub(StubWorker(uid="w0")) as stub:
        async with running_router([stub], tmp_path, keys=keys.file) as router:
            stub.faults.hold_headers = True
            open_requests = [asyncio.create_task(router.ask("hi", headers=bearer(few))) for _ in range(2)]
            open_requests.append(
                asyncio.create_task(router.ask("x" * 200, max_tokens=50, headers=bearer(small)))
            )
            await until(lambda: stub.running == 3)
            stub.faults.hold_headers = False
            too_many = await router.ask("hi", headers=bearer(few))
            too_long = await router.ask("x" * 40, max_tokens=50, headers=bearer(small))
            short = await router.ask("x", max_tokens=9, headers=bearer(small))
            others = await router.ask("hi", headers=bearer(free))
            await cancelled(open_requests)
            await is_empty(router)
            afterwards = await router.ask("hi", headers=bearer(few))

    for status, headers, body in (too_many, too_long):
        assert (status, json.loads(body)["error"]["code"]) == (429, "tenant_quota_exceeded")
        assert int(headers["retry-after"]) >= 1
    assert "2" in json.loads(too_many[2])["error"]["message"]
    assert [short[0], others[0], afterwards[0]] == [200, 200, 200]


async def test_a_tenant_over_its_quota_is_refused_before_its_body_is_sent(tmp_path: Path) -> None:
    keys = PlantedKeys()
    few = keys.add("few", max_in_flight_requests=1)
    with running_stub(StubWorker(uid="w0")) as stub:
        async with running_router([stub], tmp_path, keys=keys.file) as router:
            stub.faults.hold_headers = True
            first = asyncio.create_task(router.ask("hi", headers=bearer(few)))
            await until(lambda: stub.running == 1)
            host, port = router.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            head = (
                f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {few.text}\r\n"
                "content-type: application/json\r\ncontent-length: 1000000\r\n\r\n"
            )
            writer.write(head.encode())
            async with asyncio.timeout(5):
                status_line = await reader.readline()
            writer.close()
            await cancelled([first])

    assert b" 429 " in status_line


async def test_bodies_in_flight_are_bounded_while_they_are_read(tmp_path: Path) -> None:
    settings = AdmissionSettings(max_in_flight=Amount(100, 100_000, 2**62))
    with running_stub(StubWorker(uid="w0")) as stub:
        async with running_router([stub], tmp_path, admission=settings) as router:
            stub.faults.hold_headers = True
            large = asyncio.create_task(router.ask("x", user="x" * 60_000))
            await until(lambda: stub.running == 1)
            status, _, body = await router.ask("x", user="x" * 60_000)
            await cancelled([large])
            await is_empty(router)
            stub.faults.hold_headers = False
            small, _, _ = await router.ask("x", user="x" * 60_000)

    assert (status, json.loads(body)["error"]["code"]) == (429, "overloaded")
    assert small == 200


async def test_a_body_of_unknown_length_counts_as_it_is_received(tmp_path: Path) -> None:
    settings = AdmissionSettings(max_in_flight=Amount(100, 100_000, 2**62))
    body = json.dumps({"model": "stub", "prompt": "x" * 150_000}).encode()

    async def chunks() -> object:
        for start in range(0, len(body), 10_000):
            yield body[start : start + 10_000]

    with running_stub(StubWorker(uid="w0")) as stub:
        async with running_router([stub], tmp_path, admission=settings) as router:
            async with router.http.post(
                router.url + "/v1/completions", data=chunks(), headers={"content-type": "application/json"}
            ) as response:
                status = response.status
            await is_empty(router)

    assert status == 429
