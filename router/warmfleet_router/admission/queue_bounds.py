"""How much the router keeps for clients at once: all together, and for each tenant.

Among tenants the threshold is dynamic: one may take as much as is still free. So a single flooder gets half
of the queue, two a third each, and there is always room for the next one (Choudhury and Hahne, Dynamic Queue
Length Thresholds for Shared-Memory Packet Switches, IEEE/ACM ToN 6(2), 1998, with alpha = 1). Without keys
all clients are one tenant, which may have everything.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from warmfleet_router.routing.capacity import CapacityLimits

MIB: Final = 1024 * 1024


class Exceeded(StrEnum):
    """Which bound a request would pass: that of all requests, or its tenant's."""

    WHOLE = "whole"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class Amount:
    """What one request, or several, take up."""

    requests: int = 0
    buffered_bytes: int = 0
    """Of bodies, as far as they were received, of prompts' token ids and hashes, and of plain answers."""
    tokens: int = 0
    """Of the prompts; bytes / 4 where no tokenizer is known."""

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(
            self.requests + other.requests,
            self.buffered_bytes + other.buffered_bytes,
            self.tokens + other.tokens,
        )

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(
            self.requests - other.requests,
            self.buffered_bytes - other.buffered_bytes,
            self.tokens - other.tokens,
        )

    def within(self, bound: "Amount") -> bool:
        """Whether no part exceeds that of `bound`."""
        return (
            self.requests <= bound.requests
            and self.buffered_bytes <= bound.buffered_bytes
            and self.tokens <= bound.tokens
        )

    def where_grows(self, growth: "Amount") -> "Amount":
        """The parts that `growth` has, too; the others are 0."""
        return Amount(
            self.requests if growth.requests else 0,
            self.buffered_bytes if growth.buffered_bytes else 0,
            self.tokens if growth.tokens else 0,
        )


NOTHING: Final = Amount()
# With what else clients can make a router keep, this fits the chart's memory limit.
DEFAULT_IN_FLIGHT: Final = Amount(requests=4096, buffered_bytes=384 * MIB, tokens=2**62)
DEFAULT_HELD: Final = Amount(requests=2048, buffered_bytes=256 * MIB, tokens=8_000_000)
DEFAULT_WAKING: Final = Amount(requests=1024, buffered_bytes=128 * MIB, tokens=4_000_000)
"""Less than what may be in flight: requests of models that are awake always find the rest of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """Every bound on what one router keeps for its clients."""

    max_in_flight: Amount = DEFAULT_IN_FLIGHT
    """Requests that have not ended: arriving, waiting or at a worker, and what is buffered of them."""
    max_held: Amount = DEFAULT_HELD
    """Requests that wait for a worker. A tenant among others may have as much as is still free."""
    max_waking: Amount = DEFAULT_WAKING
    """Requests that wait for their model to wake. A tenant among others may have as much as is still free."""
    max_wait_seconds: float = 3.0
    """Reject with 429 when the wait, estimated from the queue's service rate, exceeds this (seconds).

    A full queue takes twice as long to empty when arrivals fall to half of what the fleet can do."""
    max_held_seconds: float = 120.0
    """Reject with 429 a request that has waited this long."""
    patience_seconds: float = 2.0
    """How long a request may be passed over by smaller ones while it fits nowhere, and wait for the worker
    that holds more of its prompt while another has capacity, where it would not take longer anyway."""
    longest_patience_seconds: float = 30.0
    """How long it may wait for that worker at most, however long it would take on another."""
    no_worker_seconds: float = 5.0
    """How long a request waits while the model has workers, and none of them is ready."""
    ping_seconds: float = 10.0
    """A stream that has sent nothing for this long gets its headers and a comment line."""
    room: CapacityLimits = CapacityLimits()  # noqa: RUF009 - frozen


class BoundedUsage:
    """Amounts in use, in total and by tenant, under one bound."""

    def __init__(self, bound: Amount) -> None:
        self.bound = bound
        self.total = NOTHING
        self._tenants: dict[str, Amount] = {}

    def held(self, tenant: str) -> Amount:
        """What `tenant` has in use."""
        return self._tenants.get(tenant, NOTHING)

    def exceeded(self, tenant: str, amount: Amount, *, alone: bool) -> Exceeded | None:
        """Which bound `amount` more of `tenant` would pass. `alone`: there are no other tenants.

        Only parts that grow count: a body that arrives is not cut off because other tenants sent requests.
        """
        free = self.bound - self.total
        if not amount.within(free):
            return Exceeded.WHOLE
        if not alone and not (self.held(tenant) + amount).where_grows(amount).within(free):
            return Exceeded.TENANT
        return None

    def take(self, tenant: str, amount: Amount) -> None:
        """Count `amount` more."""
        self.total += amount
        self._tenants[tenant] = self.held(tenant) + amount

    def give_back(self, tenant: str, amount: Amount) -> None:
        """Count `amount` less."""
        self.total -= amount
        left = self.held(tenant) - amount
        if left == NOTHING:
            self._tenants.pop(tenant, None)
        else:
            self._tenants[tenant] = left
