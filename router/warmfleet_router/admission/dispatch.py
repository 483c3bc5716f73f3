"""What comes out of admission: a request at a worker, charged until it is released."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from warmfleet_router.admission.isolation import Isolation
from warmfleet_router.admission.queued_request import QueuedRequest
from warmfleet_router.routing.leases import Lease
from warmfleet_router.routing.picker import PickedWorker
from warmfleet_router.workers.breakers import Trial


@dataclass(slots=True, eq=False)
class RequestUsage:
    """What one request uses, over all its attempts. The proxy counts the answer; the rest is admission's."""

    charged_cost: float
    """What its tenant was charged when the request got its first worker; corrected when it ends."""
    seats: int = 0
    """Counted in its tenant's share now."""
    is_settled: bool = False
    output_tokens: int = 0
    """Generated so far, over all sequences."""
    is_completed: bool = False
    """Whether the answer has ended, so that `output_tokens` is its length."""


class Dispatch(msgspec.Struct, frozen=True, eq=False):
    """A request at the worker that it was assigned to: lease and trial are open, its tenant is charged.

    `Admission.retry` takes over from a failed one; release the last one, however the request ends:

        dispatch = await admission.submit(request, on_queued=recorder.queued)
        try:
            ...
        finally:
            dispatch.release()
    """

    request: QueuedRequest
    picked: PickedWorker
    lease: Lease
    trial: Trial
    priority: int
    """Sent to the worker: the request's, or one step better where it bypasses what the worker was sent."""
    tried: frozenset[str]
    """Uids of all workers that the request was assigned to, this one included."""
    queued_seconds: float | None
    """How long it waited for its workers, in all; None if it never did."""
    usage: RequestUsage
    isolation: Isolation | None
    """Of a suspect that got a worker which computed no other prompt."""
    on_release: Callable[["Dispatch"], None]

    @property
    def is_alone(self) -> bool:
        """Whether the worker computed no other prompt of this router, and none was sent there since."""
        return self.isolation is not None and self.isolation.is_kept

    def release(self) -> None:
        """Give back the worker and correct the charge. Idempotent."""
        self.on_release(self)
