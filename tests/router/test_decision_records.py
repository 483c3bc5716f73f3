"""The JSON of decisions, key by key, for requests that went well, were retried, waited, broke and failed.

The files in `decisions/` are what `/debug/decisions` returned; ids, times and load are masked. After an
intended change, run this module with WARMFLEET_WRITE_GOLDEN=1 to write them again.
"""

import asyncio
import os
import re
from pathlib import Path
from typing import Any, Final

import msgspec

from warmfleet_testing.router.router_fixture import RunningRouter, running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub, running_stubs

GOLDEN: Final = Path(__file__).with_name("decisions")
LONG: Final = "x" * 200
_MASKED: Final = (
    (rb'"id":"[^"]*"', b'"id":"masked"'),
    (rb"-?\d+\.\d+(?:e[-+]\d+)?", b"0.5"),
    (rb'"(running_sequences|waiting_sequences|queued_uncached_tokens)":\d+', rb'"\1":7'),
    (rb'"position":"(w\d):\d+"', rb'"position":"\1:7"'),
)


async def shown(router: RunningRouter, name: str) -> bytes:
    async with router.http.get(f"{router.url}/debug/decisions/{name}") as response:
        return await response.read()


async def shown_at_its_end(router: RunningRouter, name: str) -> bytes:
    ring = router.router.routing.decisions
    await router.until(lambda: (found := ring.find(name)) is not None and found.total_ms is not None)
    return await shown(router, name)


def as_recorded(text: bytes, name: str) -> None:
    """Compare with the golden file, in which only what differs between runs is masked."""
    for pattern, replacement in _MASKED:
        text = re.sub(pattern, replacement, text)
    text = msgspec.json.format(text, indent=1) + b"\n"
    path = GOLDEN / f"{name}.json"
    if os.environ.get("WARMFLEET_WRITE_GOLDEN"):
        path.write_bytes(text)
    assert text == path.read_bytes()


async def ask(router: RunningRouter, name: str, **options: Any) -> None:
    await router.ask(LONG, headers={"x-request-id": name}, **options)


async def test_a_request_that_was_retried_reads_as_it_was_recorded(tmp_path: Path) -> None:
    with running_stubs(2) as stubs:
        stubs[0].faults.refuse_status = 503
        async with running_router(stubs, tmp_path, policy="RoundRobin") as router:
            await ask(router, "retried")
            as_recorded(await shown_at_its_end(router, "retried"), "retried")


async def test_a_request_that_no_worker_answered_reads_as_it_was_recorded(tmp_path: Path) -> None:
    with running_stubs(2) as stubs:
        stubs[0].faults.refuse_status = 503
        stubs[1].faults.close_before_headers = True
        async with running_router(stubs, tmp_path, policy="RoundRobin") as router:
            await ask(router, "failed")
            as_recorded(await shown_at_its_end(router, "failed"), "failed")


async def test_a_stream_that_broke_reads_as_it_was_recorded(tmp_path: Path) -> None:
    with running_stub(StubWorker(uid="w0")) as stub:
        stub.faults.die_after_events = 2
        async with running_router([stub], tmp_path) as router:
            await ask(router, "broken", stream=True)
            as_recorded(await shown_at_its_end(router, "broken"), "broken")


async def test_a_request_that_waits_reads_as_it_was_recorded_then_and_when_it_was_served(
    tmp_path: Path,
) -> None:
    with running_stub(StubWorker(uid="w0", max_running_sequences=1)) as stub:
        async with running_router([stub], tmp_path) as router:
            stub.faults.hold_headers = True
            occupying = asyncio.create_task(ask(router, "occupying"))
            await router.until(lambda: stub.running)
            stub.faults.hold_headers = False
            held = asyncio.create_task(ask(router, "held"))
            await router.until(lambda: router.router.admission.held.requests)

            as_recorded(await shown(router, "occupying"), "not_answered")
            as_recorded(await shown(router, "held"), "waiting")
            occupying.cancel()
            await held
            as_recorded(await shown_at_its_end(router, "held"), "held")
            as_recorded(await shown_at_its_end(router, "occupying"), "left")
