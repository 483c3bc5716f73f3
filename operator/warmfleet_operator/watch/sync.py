"""Compares the store with lists of the API server, at the start and every minute after it.

A watch can stop without an error, and a watch that was restarted never reports what was deleted before. So
names and versions are listed beside the watches: objects that are not listed are removed from the store, and
a kind that stays behind its list for too long fails the liveness probe.

A namespace whose lists are refused, as when its role binding is gone, is left as it is, and the others go
on: one team that leaves must not stop the operator of all. It counts again once the store holds what is
listed.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog

from warmfleet_contracts.names import MODEL_DEPLOYMENT_LABEL
from warmfleet_operator.cluster import Cluster, Listed
from warmfleet_operator.errors import ClusterError, RefusedError
from warmfleet_operator.objects.kinds import MODEL_DEPLOYMENT, WATCHED, Kind
from warmfleet_operator.watch.entry import Key
from warmfleet_operator.watch.store import Store

FIRST_SECONDS: Final = 0.25
BEHIND_PERIODS: Final = 1.5
"""A watch that has missed a change for this many periods is dead."""
NEVER_SYNCED_SECONDS: Final = 120.0
"""Limit for the first comparison to succeed while lists are answered."""

_NOTHING: Final = f"{MODEL_DEPLOYMENT_LABEL}=none.invalid"

log = structlog.get_logger("warmfleet.operator")


@dataclass(slots=True)
class WatchHealth:
    """Since when the watch of each kind has been behind its list; kinds that are not behind are absent."""

    behind_since: dict[Kind, float] = field(default_factory=dict)
    missed: dict[Kind, dict[tuple[str, str], int]] = field(default_factory=dict)
    """Objects that the store lacked at the last comparison: version by namespace and name."""


class Sync:
    """Compares the store with lists until it is cancelled.

    `synced` is set once the store held everything that was listed; the operator may lead from then on.
    `dead_watches` is for the liveness probe.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        store: Store,
        namespaces: Iterable[str],
        clock: Callable[[], float],
        period_seconds: float,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._namespaces: tuple[str | None, ...] = tuple(namespaces) or (None,)
        self._clock = clock
        self._period_seconds = period_seconds
        self._health = WatchHealth()
        self._incomplete = set(WATCHED)
        """Kinds of which the store has not yet held everything that was listed."""
        self.refused: frozenset[str] = frozenset()
        """Namespaces of which lists were refused, and since then the store has not held everything."""
        self._refusals: dict[Kind, dict[str | None, str]] = {}
        """Why the last lists of a kind were refused, by namespace."""
        self.synced = asyncio.Event()
        """Set once the store has held everything that was listed."""

    def behind_seconds(self) -> dict[Kind, float]:
        """Seconds for which each watch has been behind its list; 0 if it is not."""
        now = self._clock()
        since = self._health.behind_since
        return {kind: now - since[kind] if kind in since else 0.0 for kind in WATCHED}

    def dead_watches(self) -> list[str]:
        """Kinds whose watch has missed a change for too long."""
        limit = BEHIND_PERIODS * self._period_seconds
        if not self.synced.is_set():
            limit = max(limit, NEVER_SYNCED_SECONDS)
        behind = self.behind_seconds().items()
        return [kind.plural for kind, seconds in behind if seconds > limit]

    async def until_served(self) -> None:
        """Wait until the API server lists every kind: kopf reads only once which kinds exist.

        In a new cluster the operator may start before its CustomResourceDefinition is established.
        """
        for kind in WATCHED:
            problem = ""
            while True:
                try:
                    await self._listed(kind, _NOTHING)
                    break
                except ClusterError as error:
                    if str(error) != problem:
                        problem = str(error)
                        log.warning("waiting for the API server", kind=kind.plural, reason=problem)
                    await asyncio.sleep(1.0)

    async def run(self) -> None:
        """Compare until cancelled."""
        while True:
            started = self._clock()
            try:
                for kind in WATCHED:
                    # Before the first success for all kinds, a kind that succeeded is not compared again.
                    if self.synced.is_set() or kind in self._incomplete:
                        complete = await self._sync_kind(kind)
                        self._incomplete -= {kind} if complete else set()
                self._note_refused()
                if not self._incomplete and not self.synced.is_set():
                    log.info("synced", objects=sum(self._store.counts().values()))
                    self.synced.set()
            except ClusterError as error:
                log.warning("cannot list", reason=str(error))
            await asyncio.sleep(self._pause(self._clock() - started))

    def _pause(self, took_seconds: float) -> float:
        if not self.synced.is_set():
            return max(FIRST_SECONDS, 3 * took_seconds)  # leave the processor to the watches
        in_doubt = any(self._health.missed.values())
        return self._period_seconds / 4 if in_doubt else self._period_seconds

    async def _sync_kind(self, kind: Kind) -> bool:
        """Remove what is not listed; returns whether the store holds everything that is listed."""
        selector = "" if kind is MODEL_DEPLOYMENT else MODEL_DEPLOYMENT_LABEL
        newest = self._store.newest(kind)
        listed = await self._listed(kind, selector)
        self._store.keep_only(kind, listed, newest, except_in=self._refusals[kind])
        missing: dict[tuple[str, str], int] = {}
        for item in listed:
            known = self._store.version(kind, Key(item.namespace, item.name))
            if known is None or known[1] < item.resource_version:
                missing[item.namespace, item.name] = item.resource_version
        self._record_missing(kind, missing)
        return not missing

    async def _listed(self, kind: Kind, selector: str) -> list[Listed]:
        """What the namespaces have of a kind; notes those that refuse, and raises where all of them do."""
        listed: list[Listed] = []
        refusals: dict[str | None, str] = {}
        for namespace in self._namespaces:
            try:
                listed += await self._cluster.names(kind, namespace, selector)
            except RefusedError as error:
                refusals[namespace] = str(error)
                if len(refusals) == len(self._namespaces):
                    raise
        self._refusals[kind] = refusals
        return listed

    def _note_refused(self) -> None:
        """Which namespaces are refused, now that every kind was listed."""
        reasons: dict[str | None, str] = {}
        for refusals in self._refusals.values():
            reasons |= refusals
        behind = {namespace for missed in self._health.missed.values() for namespace, _ in missed}
        refused = frozenset(filter(None, reasons)) | (self.refused & behind)
        for namespace in refused - self.refused:
            reason = reasons[namespace]
            log.warning("cannot list in a namespace, it is left as it is", namespace=namespace, reason=reason)
        for namespace in self.refused - refused:
            log.info("a namespace is listed again", namespace=namespace)
        self.refused = refused

    def _record_missing(self, kind: Kind, missing: dict[tuple[str, str], int]) -> None:
        """A watch is behind if it lacks what the previous list held: the newest change may be in transit."""
        before = self._health.missed.get(kind, {})
        still = [
            name
            for name, version in before.items()
            if name in missing and (self._held(kind, name) or 0) < version
        ]
        if still:
            since = self._health.behind_since.setdefault(kind, self._clock())
            if self.synced.is_set():
                seconds = round(self._clock() - since, 1)
                log.warning("watch is behind", kind=kind.plural, objects=len(still), seconds=seconds)
        else:
            self._health.behind_since.pop(kind, None)
        self._health.missed[kind] = missing

    def _held(self, kind: Kind, name: tuple[str, str]) -> int | None:
        known = self._store.version(kind, Key(*name))
        return known[1] if known is not None else None
