"""A ticket counts what its request takes up, and gives all of it back."""

import pytest

from warmfleet_contracts.openai import RequestError
from warmfleet_router.admission.in_flight_limits import InFlightLimits
from warmfleet_router.admission.queue_bounds import Amount
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.tenants import Tenant

TENANT = Tenant(name="a", max_in_flight_requests=2, max_in_flight_tokens=100)


def limits() -> InFlightLimits:
    return InFlightLimits(Amount(10, 1000, 2**62), now=lambda: 7.0, metrics=RouterMetrics())


def test_a_ticket_grows_with_its_request_and_gives_everything_back() -> None:
    counted = limits()

    with counted.enter(TENANT, 100) as ticket:
        assert counted.in_flight == Amount(1, 100, 0)
        ticket.set_body_bytes(300)
        ticket.add_tokens(60)
        assert (ticket.body_bytes, ticket.entered_at) == (300, 7.0)
        assert counted.in_flight == Amount(1, 300, 60)

    assert counted.in_flight == Amount()


def test_a_rejected_extension_keeps_the_ticket_as_it_was() -> None:
    counted = limits()

    with counted.enter(TENANT, 100) as ticket:
        for extend in (lambda: ticket.set_body_bytes(1001), lambda: ticket.add_tokens(101)):
            with pytest.raises(RequestError) as refused:
                extend()
            assert refused.value.status == 429
        assert counted.in_flight == Amount(1, 100, 0)

    assert counted.in_flight == Amount()


def test_a_ticket_gives_back_after_an_error() -> None:
    counted = limits()

    with pytest.raises(ZeroDivisionError), counted.enter(TENANT, 100) as ticket:
        ticket.add_tokens(1 // 0)

    assert counted.in_flight == Amount()


def test_a_tenant_at_its_limit_gets_no_ticket() -> None:
    counted = limits()

    with counted.enter(TENANT, 1), counted.enter(TENANT, 1), pytest.raises(RequestError) as refused:
        counted.enter(TENANT, 1)

    assert (refused.value.status, refused.value.code) == (429, "tenant_quota_exceeded")
    assert counted.in_flight == Amount()
