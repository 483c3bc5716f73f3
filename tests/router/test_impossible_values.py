"""Numbers and texts that no worker can mean: a router that gets them serves all requests as before."""

import math
from pathlib import Path
from typing import Final

import pytest

from warmfleet_contracts.cache.kv_events import Frame, LoadReport, StepTimeFit, decode_message, encode_message
from warmfleet_contracts.cache.worker_api import (
    CACHED_TOKENS_HEADER,
    GENERATED_TOKENS_HEADER,
    PROMPT_TOKENS_HEADER,
)
from warmfleet_contracts.errors import ContractError
from warmfleet_contracts.metrics import ROUTER_IN_FLIGHT
from warmfleet_router.admission.queued_request import LONGEST_ANSWER_TOKENS
from warmfleet_router.error_responses import header_number, header_text, header_tokens
from warmfleet_router.proxy.headers import passed_back
from warmfleet_router.routing.cost import measured_rates
from warmfleet_testing.router.admission_fleet import MODEL, AdmissionFleet, seats
from warmfleet_testing.router.router_fixture import running_router
from warmfleet_testing.router.stub_worker import running_stubs
from warmfleet_testing.wires.counts import counts_of

LENGTH_BYTES: Final = 4
COUNTS: Final = counts_of(LoadReport)


@pytest.mark.parametrize("name", [PROMPT_TOKENS_HEADER, CACHED_TOKENS_HEADER, GENERATED_TOKENS_HEADER])
async def test_a_count_that_no_encoding_takes_fails_no_request_when_its_decision_ends_or_goes(
    name: str, tmp_path: Path
) -> None:
    with running_stubs(1) as stubs:
        stubs[0].faults.headers = {name: "9" * 20}
        async with running_router(stubs, tmp_path, ring_size=2) as router:
            statuses = [(await router.ask("hello"))[0] for _ in range(4)]
            await router.until_idle()
            shown, _ = await router.get("/internal/decisions")
            async with router.http.get(router.url + "/metrics") as response:
                page = await response.text()

    assert (statuses, shown) == ([200] * 4, 200)
    assert f"{ROUTER_IN_FLIGHT} 0.0" in page


async def test_counts_of_more_tokens_than_a_request_can_have_enter_no_sum(tmp_path: Path) -> None:
    with running_stubs(1) as stubs:
        async with running_router(stubs, tmp_path) as router:
            await router.ask("hello")
            sums = [(await router.get("/internal/fleet"))[1]["tokens"]]
            stubs[0].faults.headers = dict.fromkeys((PROMPT_TOKENS_HEADER, CACHED_TOKENS_HEADER), "9" * 15)
            await router.ask("hello")
            sums.append((await router.get("/internal/fleet"))[1]["tokens"])

    assert sums[0] == sums[1] != {}


def test_numbers_and_texts_of_headers_are_bounded() -> None:
    assert [header_number(value) for value in ("0", "9" * 15, "9" * 16, "-1", "1.0", "\u0661", "", None)] == [
        0,
        10**15 - 1,
        *[None] * 6,
    ]
    assert [header_tokens(value) for value in (str(2**32), str(2**32 + 1), None)] == [2**32, None, None]
    assert [header_text(value) for value in ("e:1", "x" * 200, "e\udcff", "\x7f", "", None)] == [
        "e:1",
        "x" * 128,
        *[None] * 4,
    ]


def test_a_workers_header_that_is_no_utf8_reaches_the_client_as_it_is() -> None:
    assert passed_back({"content-type": b"a/\xe4".decode("utf-8", "surrogateescape")}) == [
        (b"content-type", b"a/\xe4")
    ]


@pytest.mark.parametrize("count", [-1, 2**64 - 1])
@pytest.mark.parametrize("name", COUNTS)
def test_a_load_report_with_an_impossible_count_is_refused(name: str, count: int) -> None:
    frame = Frame(epoch="e", seq=0, load=LoadReport(**{name: count}))  # type: ignore[arg-type]  # counts only

    with pytest.raises(ContractError, match=name):
        decode_message(encode_message(frame)[LENGTH_BYTES:])


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, 1e308])
@pytest.mark.parametrize(
    "name",
    [
        "base_seconds",
        "per_prefill_token_seconds",
        "per_decode_sequence_seconds",
        "per_context_token_seconds",
    ],
)
def test_a_fit_with_a_coefficient_that_is_no_time_counts_as_none(name: str, seconds: float) -> None:
    fields = {"per_prefill_token_seconds": 0.001, name: seconds}

    assert measured_rates(StepTimeFit(**fields, samples=100)) is None  # type: ignore[arg-type]  # seconds only


async def test_an_answer_of_more_tokens_than_any_context_has_teaches_and_costs_no_more_than_that() -> None:
    async with AdmissionFleet(1, seats(8, 0)) as admission:
        dispatch = await admission.submit([1] * 4)
        dispatch.usage.output_tokens, dispatch.usage.is_completed = 10**15, True
        dispatch.release()
        expected = admission.admission.reserve(
            admission.ticket(), MODEL, priority=0, sequences=1, output_limit_tokens=None
        )

    assert dispatch.usage.output_tokens == LONGEST_ANSWER_TOKENS
    assert expected < LONGEST_ANSWER_TOKENS
