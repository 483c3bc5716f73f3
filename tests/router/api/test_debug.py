"""`/internal/decisions`: how many may be asked for; `/internal/fleet`: what it has of a load report."""

from pathlib import Path

import msgspec
import pytest

from warmfleet_contracts.cache.kv_events import (
    MAX_COUNT,
    MAX_REPORTED_ANSWERS,
    MAX_REPORTED_ROUTERS,
    MAX_ROUTER_ID_CHARS,
    Frame,
    Hello,
    LoadReport,
    PlainAnswer,
    decode_message,
    encode_message,
)
from warmfleet_router.api.debug import shown_load
from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.workers.event_stream import verify_hello
from warmfleet_testing.router.router_fixture import running_router
from warmfleet_testing.router.stub_worker import running_stubs

ENDPOINT = Endpoint(uid="u", name="w", url="http://127.0.0.1:1")


@pytest.mark.parametrize(
    "limit", ["0", "4097", "-1", "x", "", "1" * 5000, "000000001" + "9" * 5000, "0000000010000000"]
)
async def test_a_limit_that_is_no_number_in_range_is_refused(limit: str, tmp_path: Path) -> None:
    async with running_router([], tmp_path) as router:
        status, answer = await router.get(f"/internal/decisions?limit={limit}")

    assert status == 400
    assert answer["error"]["param"] == "limit"


async def test_as_many_decisions_are_returned_as_were_asked_for(tmp_path: Path) -> None:
    with running_stubs(1) as stubs:
        async with running_router(stubs, tmp_path) as router:
            for _ in range(3):
                await router.ask("hello")
            _, two = await router.get("/internal/decisions?limit=2")
            _, most = await router.get("/internal/decisions?limit=4096")

    assert (len(two["decisions"]), len(most["decisions"])) == (2, 3)


async def test_the_load_of_a_worker_is_shown_without_what_it_reports_per_dispatch(tmp_path: Path) -> None:
    with running_stubs(1) as stubs:
        async with running_router(stubs, tmp_path) as router:
            await router.ask("hello")
            _, fleet = await router.get("/internal/fleet")

    (endpoint,) = fleet["endpoints"]
    assert endpoint["load"].keys() == set(LoadReport.__struct_fields__) - {
        "admitted_dispatches",
        "open_dispatches",
        "plain_answers",
        "fixed_batched_tokens",  # the stub reports none
    }


def test_the_largest_hello_and_load_that_are_accepted_make_a_short_answer() -> None:
    longest = "\0" * 128
    hello = Hello(
        uid="u",
        identity=bytes(16),
        block_size_tokens=MAX_COUNT,
        window_tokens=MAX_COUNT,
        epoch=longest,
        served_names=["\0" * 256] * 64,
        tokenizer_digest=longest,
        max_model_length_tokens=MAX_COUNT,
        proof=b"",
        model_digest=longest,
    )
    verify_hello(hello, ENDPOINT, b"")
    routers = {f"{number:\0>{MAX_ROUTER_ID_CHARS}}": 2**64 - 1 for number in range(MAX_REPORTED_ROUTERS)}
    answers = [PlainAnswer(2**64 - 1, 1e308, 1e308, MAX_COUNT)] * MAX_REPORTED_ANSWERS
    load = LoadReport(
        admitted_dispatches=routers,
        open_dispatches=dict.fromkeys(routers, MAX_COUNT),
        plain_answers=dict.fromkeys(list(routers)[:8], answers),
    )
    frame = decode_message(encode_message(Frame(epoch="e", seq=0, load=load))[4:])
    assert isinstance(frame, Frame)
    assert frame.load is not None

    shown = msgspec.json.encode([hello.epoch, hello.served_names, hello.model_digest, shown_load(frame.load)])

    assert len(shown) <= 128 * 1024
