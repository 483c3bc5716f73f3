"""Numbers and texts that no worker can mean: a router that gets them serves all requests as before."""

import math
from pathlib import Path
from typing import Final

import pytest

from warmfleet_contracts.cache.fleet_totals import FLEET_TOTALS_PATH, ModelTotals, decode_totals
from warmfleet_contracts.cache.kv_events import (
    MAX_COUNT,
    Frame,
    LoadReport,
    PlainAnswer,
    StepTimeFit,
    decode_message,
    encode_message,
)
from warmfleet_contracts.cache.worker_api import (
    CACHED_TOKENS_HEADER,
    GENERATED_TOKENS_HEADER,
    PROMPT_TOKENS_HEADER,
    TOTAL_CACHED_TOKENS_HEADER,
    TOTAL_PROMPT_TOKENS_HEADER,
)
from warmfleet_contracts.errors import ContractError
from warmfleet_contracts.metrics import ROUTER_IN_FLIGHT
from warmfleet_router.admission.queued_request import LONGEST_CONTEXT_TOKENS, QueuedRequest
from warmfleet_router.error_responses import header_number, header_text, header_tokens
from warmfleet_router.proxy.cache_comparison import StatedTokens, most_prompt_tokens, stated_tokens
from warmfleet_router.proxy.headers import passed_back
from warmfleet_router.routing.cost import measured_rates
from warmfleet_router.tenants import ANONYMOUS
from warmfleet_testing.router.admission_fleet import MODEL, AdmissionFleet, seats
from warmfleet_testing.router.picker_fleet import PickerFleet, prompts
from warmfleet_testing.router.router_fixture import RunningRouter, running_router
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


async def totals_of(router: RunningRouter) -> ModelTotals:
    async with router.http.get(router.url + FLEET_TOTALS_PATH) as response:
        return decode_totals(await response.read()).models["stub"]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(
    ("names", "value"),
    [
        ((CACHED_TOKENS_HEADER,), "41"),
        ((CACHED_TOKENS_HEADER,), "4294967296"),
        ((PROMPT_TOKENS_HEADER,), "4294967296"),
        ((TOTAL_CACHED_TOKENS_HEADER,), "4294967296"),
        ((TOTAL_PROMPT_TOKENS_HEADER,), "4294967296"),
        ((PROMPT_TOKENS_HEADER, CACHED_TOKENS_HEADER), "4294967296"),
        ((TOTAL_PROMPT_TOKENS_HEADER, TOTAL_CACHED_TOKENS_HEADER), "4294967296"),
        ((CACHED_TOKENS_HEADER, TOTAL_CACHED_TOKENS_HEADER), "4294967296"),
    ],
    ids=str,
)
async def test_an_answer_moves_the_demand_by_no_more_than_its_prompt_has(
    names: tuple[str, ...], value: str, stream: bool, tmp_path: Path
) -> None:
    prompt = list(range(40))
    with running_stubs(1) as stubs:
        async with running_router(stubs, tmp_path) as router:
            await router.ask(prompt)
            before = await totals_of(router)
            stubs[0].faults.headers = dict.fromkeys(names, value)
            for _ in range(2):
                assert (await router.ask(prompt, stream=stream))[0] == 200
            after = await totals_of(router)

    assert (before.prompt_tokens, before.cached_tokens) == (40, 0)
    asked = after.prompt_tokens - before.prompt_tokens
    cached = after.cached_tokens - before.cached_tokens
    assert 0 <= cached <= asked <= 2 * 40
    assert after.misses.compulsory - before.misses.compulsory == asked - cached


async def test_all_prompts_of_a_request_count_once_however_many_choices_it_has(tmp_path: Path) -> None:
    with running_stubs(1) as stubs:
        async with running_router(stubs, tmp_path) as router:
            status, _, _ = await router.ask([[1, 2, 3], [4, 5, 6, 7]], n=2)  # type: ignore[list-item]
            counted = await totals_of(router)

    assert (status, counted.prompt_tokens, counted.cached_tokens) == (200, 7, 0)


@pytest.mark.parametrize(
    ("prompt", "cached", "stated"),
    [
        ("100", "96", StatedTokens(100, 96)),
        ("100", "100", StatedTokens(100, 100)),
        ("100", None, StatedTokens(100, None)),
        ("100", "101", StatedTokens()),
        ("101", "0", StatedTokens(100, 0)),
        ("101", "101", StatedTokens()),
        (None, "16", StatedTokens()),
        ("no number", "0", StatedTokens()),
        (None, None, StatedTokens()),
    ],
)
def test_a_worker_that_states_more_cached_tokens_than_its_prompt_has_states_nothing(
    prompt: str | None, cached: str | None, stated: StatedTokens
) -> None:
    assert stated_tokens(prompt, cached, most_tokens=100) == stated


def test_an_encoded_prompt_has_the_tokens_that_the_router_counted_and_any_other_fits_a_context() -> None:
    fleet = PickerFleet("w0")
    encoded = fleet.pick(prompts([1] * 40, [2] * 30, choices=3))
    text = fleet.pick(prompts([1] * 40, digest="of another model"))

    assert most_prompt_tokens(encoded.prediction, prompts=2) == (40, 70)
    assert most_prompt_tokens(text.prediction, prompts=2) == (
        LONGEST_CONTEXT_TOKENS,
        2 * LONGEST_CONTEXT_TOKENS,
    )


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

    assert dispatch.usage.output_tokens == LONGEST_CONTEXT_TOKENS
    assert expected < LONGEST_CONTEXT_TOKENS


@pytest.mark.parametrize(
    ("limit_tokens", "most_tokens"), [(50, 3 * 50), (None, 3 * 100_000), (2**20, 3 * 100_000), (0, 0)]
)
async def test_a_report_counts_no_more_tokens_of_an_answer_than_its_request_may_generate(
    limit_tokens: int | None, most_tokens: int
) -> None:
    async with AdmissionFleet(1, seats(8, 0)) as admission:
        dispatch = await admission.admission.submit(
            request_for(choices=3, limit_tokens=limit_tokens), on_queued=lambda _behind, _because: None
        )
        answer = PlainAnswer(dispatch.lease.dispatch, 0.0, 0.0, MAX_COUNT)
        load = LoadReport(plain_answers={"router": [answer]})
        admission.fleet.leases.frame_arrived("w0", Frame(epoch="e", seq=1, load=load))
        dispatch.release()

    assert dispatch.lease.generated_tokens == most_tokens


@pytest.mark.parametrize("limit_tokens", [None, 2**20 + 1, 2**60])
def test_no_limit_of_a_client_makes_an_answer_longer_than_any_context(limit_tokens: int | None) -> None:
    request = request_for(choices=2, limit_tokens=limit_tokens)

    assert request.most_output_tokens == 2 * LONGEST_CONTEXT_TOKENS


def request_for(*, choices: int, limit_tokens: int | None) -> QueuedRequest:
    return QueuedRequest(
        model=MODEL,
        tenant=ANONYMOUS,
        prompts=prompts([1] * 4, choices=choices),
        prompt_tokens=4,
        body_bytes=1000,
        sequences=choices,
        priority=0,
        output_limit_tokens=limit_tokens,
        arrived_at=0.0,
        body_read_at=0.0,
    )
