"""Decides which requests bypass the prompts that a worker was sent, where those are a long queue.

The window keeps the order in the router, but a prompt that was dispatched is computed before all later ones:
under a flood a whole window of the flooder's prompts, plus one more. So a tenant's second prompt on a worker,
and each further one, is *extra*: a request of another tenant that has nothing to compute there may bypass it.
It is dispatched at once, one step of priority better, and the worker computes it from its next step on.

Fair queueing stays as it is: only the request that is next in its order bypasses, and only prompts of tenants
that got more. A tenant's first prompt is never bypassed, and the first prompts of all tenants share one
window: of many tenants that come at once, most wait.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from warmfleet_router.routing.leases import Lease


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prompt that was dispatched to a worker and has no byte of an answer yet."""

    tenant: str
    priority: int
    """As it was sent."""
    tokens: int
    """Uncached when it was sent."""
    is_extra: bool
    """Its tenant had another one there."""


class Prefills:
    """The prompts of one model that this router's workers are computing, or are about to."""

    def __init__(self) -> None:
        self._of_worker: dict[str, dict[Lease, Prefill]] = {}

    def add(self, lease: Lease, tenant: str, priority: int) -> None:
        """An open lease; it counts until its first byte or its end."""
        uid = lease.charge.uid
        at_worker = self._of_worker.setdefault(uid, {})
        for computed in [kept for kept in at_worker if not kept.is_prefilling]:
            del at_worker[computed]
        is_extra = any(prefill.tenant == tenant for prefill in at_worker.values())
        at_worker[lease] = Prefill(tenant, priority, lease.charge.uncached_tokens, is_extra)

    def on(self, uid: str) -> list[Prefill]:
        """What a worker has to compute, in the order of dispatch."""
        at_worker = self._of_worker.get(uid, {})
        return [prefill for lease, prefill in at_worker.items() if lease.is_prefilling]

    def remove(self, lease: Lease) -> None:
        """The dispatch has ended. Idempotent."""
        uid = lease.charge.uid
        at_worker = self._of_worker.get(uid, {})
        at_worker.pop(lease, None)
        if not at_worker:
            self._of_worker.pop(uid, None)


def may_bypass(
    tenant: str,
    priority: int,
    prefills: Iterable[Prefill],
    *,
    counter: Callable[[str], float],
    is_within_window: Callable[[int], bool],
) -> bool:
    """Whether a request of `tenant` bypasses the extras among `prefills`.

    `counter` is what a tenant got so far per weight; `is_within_window` judges the tokens that would still
    be computed before the request.
    """
    firsts_tokens, extras = 0, 0
    own = counter(tenant)
    for prefill in prefills:
        if prefill.tenant == tenant:
            return False
        if not prefill.is_extra:
            firsts_tokens += prefill.tokens
        elif prefill.priority < priority or counter(prefill.tenant) < own:
            return False
        else:
            extras += 1
    return extras > 0 and is_within_window(firsts_tokens)
