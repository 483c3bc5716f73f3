"""Bounds what is in flight: rejects requests before the body is read, or before the prompt costs anything."""

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from warmfleet_router.admission.queue_bounds import Amount, BoundedUsage
from warmfleet_router.admission.service_rate import retry_after_seconds
from warmfleet_router.error_responses import overloaded_error, quota_error
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.tenants import Tenant

REQUEST_EWMA_WEIGHT: Final = 0.05
PRIOR_REQUEST_SECONDS: Final = 1.0


class InFlightTicket:
    """What one request takes up in the router, until its end; `with` gives it back however that comes.

    Complete from the start: the declared size of the body counts until the real one is known.
    """

    __slots__ = ("_limits", "_taken", "entered_at", "tenant")

    def __init__(self, limits: "InFlightLimits", tenant: Tenant, taken: Amount, entered_at: float) -> None:
        self.tenant = tenant
        self.entered_at = entered_at
        """Clock time in seconds."""
        self._limits = limits
        self._taken = taken

    @property
    def body_bytes(self) -> int:
        """The size of the body, as far as it is known."""
        return self._taken.body_bytes

    def set_body_bytes(self, body_bytes: int) -> None:
        """The body is read: count its real size in place of the declared one.

        Raises:
            RequestError: 429 over a bound.
        """
        self._taken += self._limits.take_body(self.tenant, body_bytes - self._taken.body_bytes)

    def add_tokens(self, tokens: int) -> None:
        """The prompt is encoded: count its tokens and those of the expected answer.

        Raises:
            RequestError: 429 over the tenant's limit.
        """
        self._taken += self._limits.take_tokens(self.tenant, tokens)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limits.give_back(self.tenant, self._taken)


class InFlightLimits:
    """Counts what is in flight, waiting or at a worker, in total and by tenant."""

    def __init__(self, bound: Amount, *, now: Callable[[], float], metrics: RouterMetrics) -> None:
        self._usage = BoundedUsage(bound)
        self._now = now
        self._metrics = metrics
        self._request_seconds = PRIOR_REQUEST_SECONDS

    @property
    def in_flight(self) -> Amount:
        """What is in flight now, over all tenants."""
        return self._usage.total

    def enter(self, tenant: Tenant, body_bytes: int) -> InFlightTicket:
        """Admit a request whose body, declared to have `body_bytes`, has not been read yet.

        Raises:
            RequestError: 429 over a bound.
        """
        mine, limit = self._usage.held(tenant.name).requests, tenant.max_in_flight_requests
        if limit is not None and mine >= limit:
            self._metrics.on_overload("tenant_requests", tenant.name)
            raise quota_error(
                f"{mine} requests of this key's tenant are in flight, its limit is {limit}",
                self._next_end_seconds(mine),
            )
        amount = Amount(requests=1, body_bytes=body_bytes)
        self._check(tenant, amount)
        return InFlightTicket(self, tenant, self._take(tenant, amount), self._now())

    def take_body(self, tenant: Tenant, more_bytes: int) -> Amount:
        """Count the difference to what a body was declared to have.

        Raises:
            RequestError: 429 over a bound.
        """
        amount = Amount(body_bytes=more_bytes)
        if more_bytes > 0:
            self._check(tenant, amount)
        return self._take(tenant, amount)

    def take_tokens(self, tenant: Tenant, tokens: int) -> Amount:
        """Count the tokens of a prompt and of its expected answer.

        Raises:
            RequestError: 429 over the tenant's limit.
        """
        mine, limit = self._usage.held(tenant.name), tenant.max_in_flight_tokens
        if limit is not None and mine.tokens + tokens > limit:
            self._metrics.on_overload("tenant_tokens", tenant.name)
            raise quota_error(
                f"this request would bring its tenant to {mine.tokens + tokens} tokens in flight, prompts "
                f"and expected answers; its limit is {limit}",
                self._next_end_seconds(mine.requests),
            )
        return self._take(tenant, Amount(tokens=tokens))

    def give_back(self, tenant: Tenant, amount: Amount) -> None:
        """A request ended."""
        self._usage.give_back(tenant.name, amount)

    def observe_request(self, seconds: float) -> None:
        """A request was answered, in so long."""
        self._request_seconds += REQUEST_EWMA_WEIGHT * (seconds - self._request_seconds)

    def _check(self, tenant: Tenant, amount: Amount) -> None:
        if self._usage.exceeded(tenant.name, amount, alone=True):
            self._metrics.on_overload("in_flight", tenant.name)
            bound = self._usage.bound
            raise overloaded_error(
                f"the router has all it can hold: {bound.requests} requests, {bound.body_bytes} bytes",
                self._next_end_seconds(self._usage.total.requests),
            )

    def _take(self, tenant: Tenant, amount: Amount) -> Amount:
        self._usage.take(tenant.name, amount)
        return amount

    def _next_end_seconds(self, in_flight: int) -> int:
        """When one of so many will have ended."""
        return retry_after_seconds(self._request_seconds / max(in_flight, 1))
