"""The door: what is refused before a body is read, or before a prompt costs anything."""

from typing import Final

from warmfleet_router.admission.queue_bounds import Amount, BoundedUsage
from warmfleet_router.admission.service_rate import retry_after_seconds
from warmfleet_router.error_responses import overloaded_error, quota_error
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.tenants import Tenant

REQUEST_EWMA_WEIGHT: Final = 0.05
PRIOR_REQUEST_SECONDS: Final = 1.0


class Door:
    """Counts what is in flight, held or at a worker, in total and by tenant."""

    def __init__(self, bound: Amount, metrics: RouterMetrics) -> None:
        self._in_flight = BoundedUsage(bound)
        self._metrics = metrics
        self._request_seconds = PRIOR_REQUEST_SECONDS

    @property
    def in_flight(self) -> Amount:
        return self._in_flight.total

    def enter(self, tenant: Tenant, body_bytes: int) -> Amount:
        """Let a request in whose body, declared to have `body_bytes`, has not been read yet.

        Raises:
            RequestError: 429 over a bound.
        """
        mine, limit = self._in_flight.held(tenant.name).requests, tenant.max_in_flight_requests
        if limit is not None and mine >= limit:
            self._metrics.on_overload("tenant_requests", tenant.name)
            raise quota_error(
                f"{mine} requests of this key's tenant are in flight, its limit is {limit}",
                self._next_end_seconds(mine),
            )
        amount = Amount(requests=1, body_bytes=body_bytes)
        self._check(tenant, amount)
        return self._take(tenant, amount)

    def take_body(self, tenant: Tenant, more_bytes: int) -> Amount:
        """The body was longer than declared, or shorter.

        Raises:
            RequestError: 429 over a bound.
        """
        amount = Amount(body_bytes=more_bytes)
        if more_bytes > 0:
            self._check(tenant, amount)
        return self._take(tenant, amount)

    def take_tokens(self, tenant: Tenant, tokens: int) -> Amount:
        """The prompt is known: its tokens and those of the expected answer.

        Raises:
            RequestError: 429 over the tenant's limit.
        """
        mine, limit = self._in_flight.held(tenant.name), tenant.max_in_flight_tokens
        if limit is not None and mine.tokens + tokens > limit:
            self._metrics.on_overload("tenant_tokens", tenant.name)
            raise quota_error(
                f"this request would bring its tenant to {mine.tokens + tokens} tokens in flight, prompts "
                f"and expected answers; its limit is {limit}",
                self._next_end_seconds(mine.requests),
            )
        return self._take(tenant, Amount(tokens=tokens))

    def give_back(self, tenant: Tenant, amount: Amount) -> None:
        """A request is over."""
        self._in_flight.give_back(tenant.name, amount)

    def completed(self, seconds: float) -> None:
        """A request was answered in so long."""
        self._request_seconds += REQUEST_EWMA_WEIGHT * (seconds - self._request_seconds)

    def _check(self, tenant: Tenant, amount: Amount) -> None:
        if self._in_flight.exceeded(tenant.name, amount, alone=True):
            self._metrics.on_overload("in_flight", tenant.name)
            bound = self._in_flight.bound
            raise overloaded_error(
                f"the router has all it can hold: {bound.requests} requests, {bound.body_bytes} bytes",
                self._next_end_seconds(self._in_flight.total.requests),
            )

    def _take(self, tenant: Tenant, amount: Amount) -> Amount:
        self._in_flight.take(tenant.name, amount)
        return amount

    def _next_end_seconds(self, in_flight: int) -> int:
        """When one of so many will have ended."""
        return retry_after_seconds(self._request_seconds / max(in_flight, 1))
