"""A ticket counts what its request takes up, and gives all of it back; no tenant takes up all there is."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.openai import RequestError
from warmfleet_router.admission.in_flight_limits import InFlightLimits
from warmfleet_router.admission.queue_bounds import Amount
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.tenants import ANONYMOUS, Tenant

TENANT = Tenant(name="a", max_in_flight_requests=2, max_in_flight_tokens=100)


def limits() -> InFlightLimits:
    return InFlightLimits(Amount(10, 1000, 2**62), now=lambda: 7.0, metrics=RouterMetrics())


def test_a_ticket_grows_with_its_request_and_gives_everything_back() -> None:
    counted = limits()

    with counted.enter(TENANT) as ticket:
        assert counted.in_flight == Amount(1, 0, 0)
        ticket.receive(100)
        assert counted.in_flight == Amount(1, 100, 0)
        ticket.receive(200)
        ticket.add_tokens(60, kept_bytes=40)
        assert (ticket.body_bytes, ticket.entered_at) == (300, 7.0)
        assert counted.in_flight == Amount(1, 340, 60)

    assert counted.in_flight == Amount()


def test_the_tokens_of_an_encoded_prompt_replace_their_estimate() -> None:
    counted = limits()

    with counted.enter(TENANT) as ticket:
        ticket.estimate_tokens(90)
        assert counted.in_flight == Amount(1, 0, 90)
        ticket.add_tokens(60)
        assert counted.in_flight == Amount(1, 0, 60)
        with pytest.raises(RequestError):
            ticket.estimate_tokens(41)

    assert counted.in_flight == Amount()


def test_a_rejected_extension_keeps_the_ticket_as_it_was() -> None:
    counted = limits()

    with counted.enter(TENANT) as ticket:
        ticket.receive(100)
        for extend in (lambda: ticket.receive(901), lambda: ticket.add_tokens(101)):
            with pytest.raises(RequestError) as refused:
                extend()
            assert refused.value.status == 429
        assert counted.in_flight == Amount(1, 100, 0)

    assert counted.in_flight == Amount()


def test_a_ticket_gives_back_after_an_error() -> None:
    counted = limits()

    with pytest.raises(ZeroDivisionError), counted.enter(TENANT) as ticket:
        ticket.add_tokens(1 // 0)

    assert counted.in_flight == Amount()


def test_a_tenant_at_its_limit_gets_no_ticket() -> None:
    counted = limits()

    with counted.enter(TENANT), counted.enter(TENANT), pytest.raises(RequestError) as refused:
        counted.enter(TENANT)

    assert (refused.value.status, refused.value.code) == (429, "tenant_quota_exceeded")
    assert counted.in_flight == Amount()


def test_a_tenant_takes_half_of_the_requests_and_the_next_one_gets_in() -> None:
    counted, flooder, light = limits(), Tenant(name="flooder"), Tenant(name="light")

    with ExitStack() as held:
        for _ in range(5):
            held.enter_context(counted.enter(flooder))
        with pytest.raises(RequestError) as refused:
            counted.enter(flooder)
        with counted.enter(light) as ticket:
            ticket.receive(100)

    assert (refused.value.status, refused.value.code) == (429, "tenant_quota_exceeded")
    assert counted.in_flight == Amount()


def test_a_tenant_takes_half_of_the_bytes_and_the_next_one_gets_in() -> None:
    counted, flooder, light = limits(), Tenant(name="flooder"), Tenant(name="light")

    with counted.enter(flooder) as heavy, counted.enter(light) as ticket:
        heavy.receive(500)
        with pytest.raises(RequestError) as refused:
            heavy.receive(1)
        ticket.receive(250)

    assert (refused.value.status, refused.value.code) == (429, "tenant_quota_exceeded")


def test_a_body_goes_on_arriving_when_other_tenants_send_requests() -> None:
    counted, early, late = limits(), Tenant(name="early"), Tenant(name="late")

    with ExitStack() as held:
        tickets = [held.enter_context(counted.enter(early)) for _ in range(5)]
        held.enter_context(counted.enter(late))
        for ticket in tickets:
            ticket.receive(100)

        assert counted.in_flight == Amount(6, 500)


def test_without_keys_the_only_tenant_may_have_everything() -> None:
    counted = limits()

    with ExitStack() as held:
        for _ in range(10):
            held.enter_context(counted.enter(ANONYMOUS)).receive(100)
        with pytest.raises(RequestError) as refused:
            counted.enter(ANONYMOUS)

    assert refused.value.code == "overloaded"


def test_bodies_and_plain_answers_share_one_bound_and_an_answer_ends_before_its_request() -> None:
    counted = limits()

    with counted.enter(ANONYMOUS) as ticket:
        ticket.receive(400)
        with pytest.raises(RequestError) as refused, ticket.answer() as answer:
            answer.receive(600)
            assert counted.in_flight == Amount(1, 1000)
            answer.receive(1)
        assert counted.in_flight == Amount(1, 400)

    assert (refused.value.status, refused.value.code) == (429, "overloaded")
    assert counted.in_flight == Amount()


@given(
    limit=st.integers(1, 200),
    prompt_tokens=st.integers(0, 300),
    answer_tokens=st.integers(0, 10**6),
    in_flight=st.integers(0, 200),
)
def test_an_answer_of_unstated_length_takes_at_most_what_the_limit_leaves_beside_its_prompt(
    limit: int, prompt_tokens: int, answer_tokens: int, in_flight: int
) -> None:
    counted, tenant = limits(), Tenant(name="a", max_in_flight_tokens=limit)
    in_flight = min(in_flight, limit)

    with counted.enter(tenant) as other, counted.enter(tenant) as ticket:
        other.add_tokens(in_flight)
        try:
            ticket.add_tokens(prompt_tokens + answer_tokens, guessed_tokens=answer_tokens)
        except RequestError:
            # Alone it is refused for its prompt only.
            assert in_flight + prompt_tokens + answer_tokens > limit
            assert in_flight or prompt_tokens > limit
        else:
            assert counted.in_flight.tokens <= limit

    assert counted.in_flight == Amount()


def test_an_answer_of_stated_length_beyond_the_limit_is_refused() -> None:
    counted = limits()

    with counted.enter(TENANT) as ticket, pytest.raises(RequestError) as refused:
        ticket.add_tokens(10 + 91)

    assert refused.value.code == "tenant_quota_exceeded"


def test_the_name_of_the_only_tenant_makes_no_tenant_the_only_one() -> None:
    counted, namesake = limits(), Tenant(name=ANONYMOUS.name)

    with ExitStack() as held:
        for _ in range(5):
            held.enter_context(counted.enter(namesake))
        with pytest.raises(RequestError) as refused:
            counted.enter(namesake)

    assert refused.value.code == "tenant_quota_exceeded"
