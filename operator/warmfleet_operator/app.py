"""Builds the operator and runs its tasks: watches, sync, leader election, reconciliation, router polls."""

import asyncio
import math
import random
import time
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
from warmfleet_operator.hub.commits import HubCommits
from warmfleet_operator.keys import KeySecrets
from warmfleet_operator.leadership.elector import LeaderElector
from warmfleet_operator.leadership.fence import Fence
from warmfleet_operator.metrics import OperatorMetrics
from warmfleet_operator.reconcile.reconcile import Reconciler
from warmfleet_operator.reconcile.writer import Writer
from warmfleet_operator.replicas.shrinks import Shrinks
from warmfleet_operator.routers.client import RouterClient
from warmfleet_operator.routers.fleet import FleetView
from warmfleet_operator.routers.handover import RouterHandover
from warmfleet_operator.routers.hit_rates import HitRates
from warmfleet_operator.routers.poller import RouterPoller
from warmfleet_operator.routers.totals import TotalsReader
from warmfleet_operator.settings import OperatorSettings
from warmfleet_operator.status.advisor import ScalingAdvisor
from warmfleet_operator.watch.entry import Key
from warmfleet_operator.watch.key_processor import KeyProcessor
from warmfleet_operator.watch.kopf_watches import KopfWatches
from warmfleet_operator.watch.store import Store
from warmfleet_operator.watch.sync import Sync

PENDING_POLL_SECONDS: Final = 1.0
"""Between two polls of the routers while some deployment has a ready worker that a router does not know."""
ASLEEP_SECONDS: Final = 1.0
"""Between two readings of the routers' totals while a fleet sleeps, so that a held request wakes it soon."""

REFUSED_SECONDS: Final = 5.0
"""After which a ModelDeployment in a namespace that refuses to be listed is looked at again."""

log = structlog.get_logger("warmfleet.operator")


class Operator:
    """One replica of the operator.

    async with Cluster.connected(...) as cluster:
        await Operator(cluster, fence, settings).run(stop)
    """

    def __init__(self, cluster: Cluster, fence: Fence, settings: OperatorSettings) -> None:
        self.settings = settings
        self.fence = fence
        self.metrics = OperatorMetrics()
        self._cluster = cluster
        self._processor: KeyProcessor[Key] = KeyProcessor(self._process, settings.workers)
        self._store = Store(self._processor.add)
        self._key_secrets = KeySecrets(cluster, settings, self._store.namespaces)
        self._hits = HitRates()
        self._client = RouterClient(key_secrets=self._key_secrets, router_port=settings.router_port)
        self._routers = RouterPoller(
            cluster=cluster, client=self._client, settings=settings, on_change=self._on_fleet_change
        )
        self._totals = TotalsReader(routers=self._routers, client=self._client)
        self._advisor = ScalingAdvisor(
            store=self._store,
            totals=self._totals,
            no_room_seconds=settings.no_room_seconds,
            on_change=self._processor.add,
        )
        self._shrinks = Shrinks(
            totals=self._totals,
            handover=RouterHandover(routers=self._routers, client=self._client, metrics=self.metrics),
            on_handed_over=self._processor.add,
            metrics=self.metrics,
        )
        self._commits = HubCommits[Key](cluster=cluster, settings=settings, on_change=self._processor.add)
        self._reconciler = Reconciler(
            store=self._store,
            writer=Writer(cluster=cluster, store=self._store, metrics=self.metrics, settings=settings),
            key_secrets=self._key_secrets,
            commits=self._commits,
            routers=self._routers,
            hits=self._hits,
            advisor=self._advisor,
            shrinks=self._shrinks,
            settings=settings,
        )
        self._sync = Sync(
            cluster=cluster,
            store=self._store,
            namespaces=settings.watched_namespaces,
            clock=fence.clock,
            period_seconds=settings.sync_seconds,
        )
        self._watches = KopfWatches(
            namespaces=settings.watched_namespaces,
            connect=cluster.connection,
            on_update=self._store.put,
            on_delete=self._store.drop,
        )
        self._reconciling = False
        """Leading, with the store synced and the routers polled."""
        self._leadership_changed = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set; then release the lease.

        Raises:
            OperatorError: the watches ended.
        """
        elector = LeaderElector(
            cluster=self._cluster,
            fence=self.fence,
            settings=self.settings.lease,
            namespace=self.settings.release_namespace,
            identity=self.settings.identity,
            on_change=self._on_leadership,
        )
        stopping = asyncio.create_task(stop.wait())
        try:
            async with _running(self._sync.until_served()) as served:
                await asyncio.wait((stopping, served), return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                return
            self._watches.start()
            async with (
                _running(elector.run()) as electing,
                _running(
                    self._sync.run(),
                    self._processor.run(),
                    self._start_reconciling(),
                    self._resync(),
                    self._poll(),
                    self._scale(),
                ) as failed,
            ):
                done, _ = await asyncio.wait(
                    (stopping, electing, failed, self._watches.ended), return_when=asyncio.FIRST_COMPLETED
                )
                for ended in done & {electing, failed}:
                    ended.result()
                if self._watches.ended in done:
                    raise OperatorError(f"the watches ended: {self._watches.ended.result()}")
        finally:
            stopping.cancel()
            await self._watches.stop()
            await self._shrinks.stop()
            await self._commits.stop()
            await self._client.close()

    def liveness_failure(self) -> str:
        """Why the kubelet should restart this process; empty if it should not."""
        dead = self._sync.dead_watches()
        return f"watches that miss listed changes: {', '.join(dead)}" if dead else ""

    def readiness_failure(self) -> str:
        """Why this replica could not lead now; empty if it could."""
        return "" if self._sync.synced.is_set() else "the first lists of the cluster are not complete yet"

    def role(self) -> str:
        """`leading` or `standing by`."""
        return "leading" if self.fence.leading else "standing by"

    def render_metrics(self) -> bytes:
        """The metrics page."""
        return self.metrics.render(
            depth=len(self._processor.queue),
            leading=self.fence.leading,
            behind=self._sync.behind_seconds(),
            objects=self._store.counts(),
            conditions=self._store.conditions(),
            states={(key.namespace, key.name): state for key, state in self._store.states().items()},
            advice={(key.namespace, key.name): item for key, item in self._advisor.all_advice().items()},
        )

    def _on_leadership(self, leading: bool) -> None:  # noqa: FBT001 - signature of the callback
        if not leading:
            self._reconciling = False
            self._advisor.forget_all()
            self._shrinks.forget_all()
            self._commits.forget_all()
        self._leadership_changed.set()

    async def _start_reconciling(self) -> None:
        await self._sync.synced.wait()
        while True:
            await self._leadership_changed.wait()
            self._leadership_changed.clear()
            if self.fence.leading:
                # Poll the routers first, so that a change of leader changes no status.
                self._key_secrets.forget()
                await self._routers.poll()
                self._reconciling = True
                self._enqueue_all(0.0)

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self.settings.resync_seconds)
            self._key_secrets.forget()
            self._enqueue_all(self.settings.resync_seconds / 2)

    async def _poll(self) -> None:
        polled = self.fence.clock()
        while True:
            await asyncio.sleep(PENDING_POLL_SECONDS)
            due = polled + self.settings.router_poll_seconds
            if self._reconciling and (self._reconciler.waiting_for_routers or self.fence.clock() >= due):
                await self._routers.poll()
                polled = self.fence.clock()

    async def _scale(self) -> None:
        period, ticked = self.settings.scaling_seconds, -math.inf
        while True:
            soon = self._reconciling and self._advisor.any_asleep
            await asyncio.sleep(min(period, ASLEEP_SECONDS) if soon else period)
            if not self._reconciling or not self._advisor.follows_any:
                continue
            due = self.fence.clock() - ticked >= period - ASLEEP_SECONDS / 2
            if soon and due:
                await self._routers.find()  # a router that has just got ready may hold requests
            await self._totals.read()
            if self._reconciling:  # it may have ended while routers were asked
                with self.metrics.scaling_seconds.time():
                    self._advisor.tick(time.time(), only_asleep=not due)
            ticked = self.fence.clock() if due else ticked

    def _enqueue_all(self, within_seconds: float) -> None:
        for key in self._store.deployments():
            self._processor.add(key, random.uniform(0, within_seconds))  # noqa: S311 - spreads work

    def _on_fleet_change(self, before: FleetView, after: FleetView) -> None:
        self._hits.add(after.tokens, self.fence.clock())
        if (before.routers, before.answering, before.problem) != (
            after.routers,
            after.answering,
            after.problem,
        ):
            self._enqueue_all(1.0)
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
        for key in self._store.affected_by(changed, names):
            self._processor.add(key)

    async def _process(self, key: Key) -> None:
        queue = self._processor.queue
        if not self._reconciling:
            queue.done(key)  # the next leader enqueues all keys
            return
        if key.namespace in self._sync.refused:
            queue.done(key)
            self._processor.add(key, REFUSED_SECONDS)
            return
        result, again = "failed", None
        try:
            with self.metrics.seconds.time():
                again = await self._reconciler.reconcile(key)
        except NotLeadingError:
            result = "not_leading"
            # The lease may still be renewed in time, and then no other replica processes the key.
            queue.failed(key, self._processor.now())
        except ThrottledError as error:
            self._failed(key, error, error.retry_after_seconds)
        except RefusedError as error:
            result = "refused"
            self._failed(key, error)
        except ClusterError as error:
            self._failed(key, error)
        except Exception:
            self.metrics.errors.labels("other").inc()
            pause = queue.failed(key, self._processor.now())
            log.exception(
                "reconciliation failed unexpectedly", deployment=str(key), again_seconds=round(pause, 3)
            )
        else:
            result = "done"
            queue.done(key)
            if again is not None:
                self._processor.add(key, again)
        self.metrics.reconciliations.labels(result).inc()

    def _failed(self, key: Key, error: ClusterError, at_least_seconds: float = 0.0) -> None:
        pause = self._processor.queue.failed(key, self._processor.now(), at_least_seconds)
        kind = type(error).__name__.removesuffix("Error").lower()
        self.metrics.errors.labels(kind).inc()
        log.warning(
            "reconciliation failed", deployment=str(key), reason=str(error), again_seconds=round(pause, 3)
        )


@asynccontextmanager
async def _running(
    *coroutines: "asyncio._CoroutineLike[None]",
) -> AsyncIterator["asyncio.Future[list[None]]"]:
    """Run tasks while the block runs; the future fails with the first task that fails."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    together = asyncio.gather(*tasks)
    try:
        yield together
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if together.done() and not together.cancelled():
            together.exception()  # retrieved, so that asyncio does not log it
