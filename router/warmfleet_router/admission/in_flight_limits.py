"""Bounds what is in flight: rejects requests before the body is read, or before the prompt costs anything.

Bytes count when they are received, not when they are declared: a client that declares 32 MiB and sends
nothing takes up one request. Requests and bytes are shared between tenants as the queue is (`queue_bounds`),
so that no tenant's connections or bodies ever shut out another tenant.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Final, Self

from warmfleet_contracts.prompts.prompt_size import INLINE_CHARS
from warmfleet_router.admission.encoding_slots import EncodingSlots
from warmfleet_router.admission.queue_bounds import MIB, NOTHING, Amount, BoundedUsage, Exceeded
from warmfleet_router.admission.service_rate import retry_after_seconds
from warmfleet_router.error_responses import overloaded_error, quota_error
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.tenants import Tenant
from warmfleet_router.workers.encoders import ENCODING_THREADS

REQUEST_EWMA_WEIGHT: Final = 0.05
PRIOR_REQUEST_SECONDS: Final = 1.0


class InFlightTicket:
    """What one request takes up in the router, until its end; `with` gives it back however that comes.

    with limits.enter(tenant) as ticket:
        body = await read_body(request, ticket.receive)
        async with ticket.encoding_slot():
            ...  # decode the body, encode the prompt
        with ticket.answer() as answer:
            ...  # read it, each piece through `answer.receive`, and send it
    """

    __slots__ = ("_estimated", "_limits", "_taken", "body_bytes", "entered_at", "is_retry", "tenant")

    def __init__(
        self, limits: "InFlightLimits", tenant: Tenant, taken: Amount, entered_at: float, *, is_retry: bool
    ) -> None:
        self.tenant = tenant
        self.is_retry = is_retry
        """Its client had sent the request before, and states it."""
        self.entered_at = entered_at
        """Clock time in seconds."""
        self.body_bytes = 0
        """What was received of the body."""
        self._limits = limits
        self._taken = taken
        self._estimated = NOTHING

    def receive(self, more_bytes: int) -> None:
        """Count a piece of the body before it is kept.

        Raises:
            RequestError: 429 over a bound.
        """
        self._taken += self._limits.take_bytes(self.tenant, more_bytes)
        self.body_bytes += more_bytes

    def encoding_slot(self) -> AbstractAsyncContextManager[None]:
        """Wait until the body, if it is large, may be decoded and its prompt encoded, in the block."""
        if self.body_bytes <= INLINE_CHARS:
            return nullcontext()
        return self._limits.encoding_slots.slot(self.tenant)

    def estimate_tokens(self, tokens: int) -> None:
        """Count about as many tokens until `add_tokens` counts the true ones.

        Raises:
            RequestError: 429 over the tenant's limit, because of what else it has in flight.
        """
        self._estimated = self._limits.take_tokens(self.tenant, tokens, guessed_tokens=tokens)
        self._taken += self._estimated

    def add_tokens(self, tokens: int, kept_bytes: int = 0, *, guessed_tokens: int = 0) -> None:
        """The prompt is encoded: count its tokens and those of the expected answer, and what is kept of it.

        `guessed_tokens` of them are neither counted nor stated by the client (`take_tokens`).

        Raises:
            RequestError: 429 over a bound or the tenant's limit.
        """
        self._limits.give_back(self.tenant, self._estimated)
        self._taken -= self._estimated
        self._estimated = NOTHING
        self._taken += self._limits.take_bytes(self.tenant, kept_bytes)
        self._taken += self._limits.take_tokens(self.tenant, tokens, guessed_tokens=guessed_tokens)

    @contextmanager
    def answer(self) -> Iterator["BufferedAnswer"]:
        """Count a plain answer while it is buffered, until the end of `with`."""
        buffered = BufferedAnswer(self._limits, self.tenant)
        try:
            yield buffered
        finally:
            self._limits.give_back(self.tenant, Amount(buffered_bytes=buffered.size_bytes))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limits.give_back(self.tenant, self._taken)


class BufferedAnswer:
    """A plain answer on its way from a worker to its client."""

    __slots__ = ("_limits", "_tenant", "size_bytes")

    def __init__(self, limits: "InFlightLimits", tenant: Tenant) -> None:
        self.size_bytes = 0
        """What was received of it."""
        self._limits = limits
        self._tenant = tenant

    def receive(self, more_bytes: int) -> None:
        """Count a piece before it is kept.

        Raises:
            RequestError: 429 over a bound.
        """
        self._limits.take_bytes(self._tenant, more_bytes)
        self.size_bytes += more_bytes

    def drop(self) -> None:
        """What was received is not kept: the worker did not answer."""
        self._limits.give_back(self._tenant, Amount(buffered_bytes=self.size_bytes))
        self.size_bytes = 0


class InFlightLimits:
    """Counts what is in flight, waiting or at a worker, in total and by tenant."""

    def __init__(self, bound: Amount, *, now: Callable[[], float], metrics: RouterMetrics) -> None:
        self.encoding_slots = EncodingSlots(ENCODING_THREADS)
        self._usage = BoundedUsage(bound)
        self._now = now
        self._metrics = metrics
        self._request_seconds = PRIOR_REQUEST_SECONDS

    @property
    def in_flight(self) -> Amount:
        """What is in flight now, over all tenants."""
        return self._usage.total

    def enter(self, tenant: Tenant, *, is_retry: bool = False) -> InFlightTicket:
        """Admit a request whose body has not been read yet; `is_retry`: its client had sent it before.

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
        amount = Amount(requests=1)
        self._check(tenant, amount)
        return InFlightTicket(self, tenant, self._take(tenant, amount), self._now(), is_retry=is_retry)

    def take_bytes(self, tenant: Tenant, more_bytes: int) -> Amount:
        """Count bytes of a body or of a plain answer.

        Raises:
            RequestError: 429 over a bound.
        """
        amount = Amount(buffered_bytes=more_bytes)
        self._check(tenant, amount)
        return self._take(tenant, amount)

    def take_tokens(self, tenant: Tenant, tokens: int, *, guessed_tokens: int = 0) -> Amount:
        """Count the tokens of a prompt and of its expected answer.

        `guessed_tokens` of them are a guess, which other tenants' requests may have made large: it takes up
        at most what the others leave of the tenant's limit. So a guess keeps requests from running side by
        side, and refuses none that runs alone.

        Raises:
            RequestError: 429 over the tenant's limit.
        """
        mine, limit = self._usage.held(tenant.name), tenant.max_in_flight_tokens
        if limit is not None:
            known_tokens = tokens - guessed_tokens
            tokens = max(min(tokens, limit), known_tokens)
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
        bound, total = self._usage.bound, self._usage.total
        match self._usage.exceeded(tenant.name, amount, alone=tenant.is_alone):
            case Exceeded.WHOLE:
                self._metrics.on_overload("in_flight", tenant.name)
                raise overloaded_error(
                    f"the router has all it can hold: {bound.requests} requests, "
                    f"{bound.buffered_bytes / MIB:g} MiB of bodies and plain answers",
                    self._next_end_seconds(total.requests),
                )
            case Exceeded.TENANT:
                self._metrics.on_overload("tenant_share", tenant.name)
                held = self._usage.held(tenant.name)
                raise quota_error(
                    f"this key's tenant has its share of what the router can hold: {held.requests} requests, "
                    f"{held.buffered_bytes} bytes of bodies and plain answers",
                    self._next_end_seconds(held.requests),
                )
            case None:
                pass

    def _take(self, tenant: Tenant, amount: Amount) -> Amount:
        self._usage.take(tenant.name, amount)
        return amount

    def _next_end_seconds(self, in_flight: int) -> int:
        """When one of so many will have ended."""
        return retry_after_seconds(self._request_seconds / max(in_flight, 1))
