"""The operator, put together: what runs beside what, and who hears of whom."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog

from warmfleet_operator.cluster import Cluster
from warmfleet_operator.errors import (
    ClusterError,
    NotLeadingError,
    OperatorError,
    RefusedError,
    ThrottledError,
)
from warmfleet_operator.keys import Keys
from warmfleet_operator.leadership.fence import Fence
from warmfleet_operator.leadership.lease import Campaign
from warmfleet_operator.metrics import OperatorMetrics
from warmfleet_operator.reconcile.reconcile import Reconciler
from warmfleet_operator.reconcile.writer import Writer
from warmfleet_operator.settings import OperatorSettings
from warmfleet_operator.status.fleet import FleetView
from warmfleet_operator.status.hits import HitRates
from warmfleet_operator.status.routers import Routers
from warmfleet_operator.watch.handlers import Informer
from warmfleet_operator.watch.queue import Workers
from warmfleet_operator.watch.store import Key, Store
from warmfleet_operator.watch.sync import Sync

IMPATIENT_SECONDS: Final = 1.0
"""Between two rounds to the routers while somebody waits for what they say."""

log = structlog.get_logger("warmfleet.operator")


class Operator:
    """One process of the operator."""

    def __init__(self, cluster: Cluster, fence: Fence, settings: OperatorSettings) -> None:
        self.settings = settings
        self.fence = fence
        self.metrics = OperatorMetrics()
        self._cluster = cluster
        self._workers: Workers[Key] = Workers(self._look, settings.workers)
        self._store = Store(self._workers.add)
        self._keys = Keys(cluster, settings)
        self._hits = HitRates()
        self._routers = Routers(
            cluster=cluster, keys=self._keys, settings=settings, on_news=self._on_fleet_news
        )
        self._reconciler = Reconciler(
            store=self._store,
            writer=Writer(
                cluster=cluster, store=self._store, metrics=self.metrics, identity=settings.identity
            ),
            keys=self._keys,
            routers=self._routers,
            hits=self._hits,
            settings=settings,
        )
        self._sync = Sync(
            cluster=cluster,
            store=self._store,
            namespaces=settings.watched_namespaces,
            clock=fence.clock,
            period_seconds=settings.sync_seconds,
        )
        self._informer = Informer(
            namespaces=settings.watched_namespaces,
            connect=cluster.connection,
            on_seen=self._store.put,
            on_gone=self._store.drop,
        )
        self._in_charge = False
        """Leading, with all that has to be known for the first look."""
        self._lead_changed = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until told to stop; then give the lead back.

        Raises:
            OperatorError: the watches ended.
        """
        campaign = Campaign(
            cluster=self._cluster,
            fence=self.fence,
            settings=self.settings.lease,
            namespace=self.settings.release_namespace,
            identity=self.settings.identity,
            on_change=self._on_lead,
        )
        stopping = asyncio.create_task(stop.wait())
        try:
            async with _running(self._sync.until_served()) as served:
                await asyncio.wait((stopping, served), return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                return
            self._informer.start()
            async with (
                _running(campaign.run()),
                _running(
                    self._sync.run(), self._workers.run(), self._take_charge(), self._resync(), self._poll()
                ) as failed,
            ):
                done, _ = await asyncio.wait(
                    (stopping, failed, self._informer.ended), return_when=asyncio.FIRST_COMPLETED
                )
                if failed in done:
                    failed.result()
                if self._informer.ended in done:
                    raise OperatorError(f"the watches ended: {self._informer.ended.result()}")
        finally:
            stopping.cancel()
            await self._informer.stop()

    def sick(self) -> str:
        """Why a restart would help; empty = it would not."""
        dead = self._sync.dead_watches()
        return f"watches that miss what lists hold: {', '.join(dead)}" if dead else ""

    def unready(self) -> str:
        """Why this replica could not lead now."""
        return "" if self._sync.synced.is_set() else "what the cluster holds is not known yet"

    def role(self) -> str:
        return "leading" if self.fence.leading else "standing by"

    def render_metrics(self) -> bytes:
        return self.metrics.render(
            depth=len(self._workers.queue),
            leading=self.fence.leading,
            behind=self._sync.behind_seconds(),
            objects=self._store.counts(),
            conditions=self._store.conditions(),
        )

    def _on_lead(self, leading: bool) -> None:  # noqa: FBT001 - what it is called back with
        if not leading:
            self._in_charge = False
        self._lead_changed.set()

    async def _take_charge(self) -> None:
        await self._sync.synced.wait()
        while True:
            await self._lead_changed.wait()
            self._lead_changed.clear()
            if self.fence.leading:
                # First what routers say, so that a change of leader changes no status.
                self._keys.look_again()
                await self._routers.ask()
                self._in_charge = True
                self._look_at_all(0.0)

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self.settings.resync_seconds)
            self._keys.look_again()
            self._look_at_all(self.settings.resync_seconds / 2)

    async def _poll(self) -> None:
        asked = self.fence.clock()
        while True:
            await asyncio.sleep(IMPATIENT_SECONDS)
            due = asked + self.settings.router_poll_seconds
            if self._in_charge and (self._reconciler.waiting_for_routers or self.fence.clock() >= due):
                await self._routers.ask()
                asked = self.fence.clock()

    def _look_at_all(self, within_seconds: float) -> None:
        for key in self._store.deployments():
            self._workers.add(key, random.uniform(0, within_seconds))  # noqa: S311 - spreads work

    def _on_fleet_news(self, before: FleetView, after: FleetView) -> None:
        self._hits.add(after.tokens, self.fence.clock())
        if (before.routers, before.answering, before.problem) != (
            after.routers,
            after.answering,
            after.problem,
        ):
            self._look_at_all(1.0)
            return
        changed = {
            uid
            for uid in before.workers.keys() | after.workers.keys()
            if before.workers.get(uid) != after.workers.get(uid)
        }
        names = {
            name
            for name in after.tokens.keys() | after.held.keys()
            if before.tokens.get(name) != after.tokens.get(name)
            or before.held.get(name) != after.held.get(name)
        }
        for key in self._store.concerned(changed, names):
            self._workers.add(key)

    async def _look(self, key: Key) -> None:
        queue = self._workers.queue
        if not self._in_charge:
            queue.done(key)  # whoever takes charge looks at all
            return
        result, again = "failed", None
        try:
            with self.metrics.seconds.time():
                again = await self._reconciler.reconcile(key)
        except NotLeadingError:
            result = "not_leading"
            # The lease may still be renewed in time, and then nobody else looks.
            queue.failed(key, self._workers.now())
        except ThrottledError as error:
            self._failed(key, error, error.retry_after_seconds)
        except RefusedError as error:
            result = "refused"
            self._failed(key, error)
        except ClusterError as error:
            self._failed(key, error)
        except Exception:
            self.metrics.errors.labels("other").inc()
            pause = queue.failed(key, self._workers.now())
            log.exception("cannot reconcile", deployment=str(key), again_seconds=round(pause, 3))
        else:
            result = "done"
            queue.done(key)
            if again is not None:
                self._workers.add(key, again)
        self.metrics.reconciliations.labels(result).inc()

    def _failed(self, key: Key, error: ClusterError, at_least_seconds: float = 0.0) -> None:
        pause = self._workers.queue.failed(key, self._workers.now(), at_least_seconds)
        kind = type(error).__name__.removesuffix("Error").lower()
        self.metrics.errors.labels(kind).inc()
        log.warning("look again", deployment=str(key), reason=str(error), again_seconds=round(pause, 3))


@asynccontextmanager
async def _running(
    *coroutines: "asyncio._CoroutineLike[None]",
) -> AsyncIterator["asyncio.Future[list[None]]"]:
    """Tasks that run for as long as the block does; the future fails with the first of them that fails."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    together = asyncio.gather(*tasks)
    try:
        yield together
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if together.done() and not together.cancelled():
            together.exception()  # seen
