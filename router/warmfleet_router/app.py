"""Builds a router from its settings, one function per room."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import structlog

from warmfleet_contracts.cache.contract_versions import ACCEPTED_VERSIONS
from warmfleet_contracts.cache.kv_events import Frame
from warmfleet_router.admission.admission import Admission
from warmfleet_router.admission.in_flight_limits import InFlightLimits
from warmfleet_router.discovery.base import Discovery
from warmfleet_router.discovery.endpoints_file import EndpointsFile
from warmfleet_router.discovery.kubernetes import KubernetesDiscovery
from warmfleet_router.discovery.static import StaticDiscovery
from warmfleet_router.economics.ghost_list import GhostList
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.prewarm.handover import Handovers
from warmfleet_router.prewarm.hot_prefixes import HotPrefixes
from warmfleet_router.prewarm.prewarmer import Prewarmer
from warmfleet_router.prewarm.worker_prewarms import WorkerPrewarms
from warmfleet_router.proxy.cache_comparison import CacheComparison
from warmfleet_router.proxy.crash_suspects import CrashSuspects
from warmfleet_router.proxy.exchange import Exchanges
from warmfleet_router.proxy.proxy import Proxy
from warmfleet_router.proxy.retry_budget import RetryBudget
from warmfleet_router.proxy.text_proxy import TextProxy
from warmfleet_router.rooms import ApiRoom, Common, Part, ProxyRoom, RoutingRoom, WorkersRoom
from warmfleet_router.routes import build_api
from warmfleet_router.routing.block_hash_memory import BlockHashMemory
from warmfleet_router.routing.decision_ring import DecisionRing
from warmfleet_router.routing.leases import Leases
from warmfleet_router.routing.miss_causes import MissCauses
from warmfleet_router.routing.picker import Picker
from warmfleet_router.routing.slow_workers import SlowWorkerDetector, SlowWorkerEjector
from warmfleet_router.settings import RouterSettings
from warmfleet_router.workers.breakers import Breakers, Cause
from warmfleet_router.workers.encoders import Encoders
from warmfleet_router.workers.fleet import Fleet
from warmfleet_router.workers.index_sweeper import IndexSweeper
from warmfleet_router.workers.liveness import LivenessSweeper, LivenessWatch
from warmfleet_router.workers.prefix_index import PrefixIndex
from warmfleet_router.workers.upstream import Upstream

_log = structlog.get_logger("warmfleet.router")


@dataclass(frozen=True, slots=True)
class Router:
    """All rooms of one router. `running` starts what lives between requests."""

    settings: RouterSettings
    metrics: RouterMetrics
    workers: WorkersRoom
    routing: RoutingRoom
    limits: InFlightLimits
    admission: Admission
    prewarmer: Prewarmer
    api: ApiRoom

    @property
    def parts(self) -> tuple[Part, ...]:
        """What lives between requests, in the order of its start."""
        workers, keys = self.workers, self.api.keys
        followed = [keys] if keys is not None else []
        return (
            workers.upstream,
            self.prewarmer,
            workers.liveness_sweeper,
            workers.index_sweeper,
            workers.fleet,
            workers.encoders,
            self.admission,
            *followed,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Follow the fleet while the block lasts."""
        async with contextlib.AsyncExitStack() as stack:
            for part in self.parts:
                await part.start()
                stack.push_async_callback(part.stop)
            yield


def build_router(
    settings: RouterSettings,
    discovery: Discovery | None = None,
    *,
    now: Callable[[], float] = time.monotonic,
    contract_versions: AbstractSet[int] = ACCEPTED_VERSIONS,
) -> Router:
    """A router that has not been started; `discovery` replaces the settings' list of endpoints.

    `now` is the clock by which waits, rates and ejections are measured, in seconds. `contract_versions` are
    those that it speaks with workers, all that this release knows or fewer.
    """
    # Counters start at 1 in each life, and workers remember the highest per id: an id lives once.
    # Workers keep 64 characters of it. Names of pods differ at the end.
    life_id = f"{settings.router_id[-48:]}-{secrets.token_hex(4)}"
    common = Common(settings, life_id, now, RouterMetrics(), asyncio.Event())
    leases = Leases(life_id, now, on_capacity=common.capacity_changed.set)
    slow_workers = SlowWorkerDetector(settings.outliers)
    suspects = CrashSuspects(now)
    hot = HotPrefixes()

    def on_frame(uid: str, frame: Frame) -> None:
        leases.frame_arrived(uid, frame)
        prewarmer.frame_arrived(uid, frame)

    def forget(uid: str) -> None:
        for forget_worker in (leases.forget, slow_workers.forget, prewarmer.forget):
            forget_worker(uid)

    def is_tenant(name: str) -> bool:
        return api.keys is None or api.keys.has_tenant(name)

    def on_models(models: Collection[str]) -> None:
        admission.keep_models(models)
        common.metrics.models.keep_models(models)

    def on_change() -> None:
        common.capacity_changed.set()
        admission.waking.look()

    workers = build_workers(
        common,
        discovery,
        contract_versions,
        on_frame=on_frame,
        on_change=on_change,
        forget=forget,
        on_ended=suspects.engine_ended,
        on_models=on_models,
    )
    routing = build_routing(common, workers, leases, slow_workers)
    limits = InFlightLimits(settings.admission.max_in_flight, now=now, metrics=common.metrics)
    admission = build_admission(common, workers, routing, limits)
    prewarms = WorkerPrewarms(workers.upstream)
    prewarmer = Prewarmer(
        hot,
        prewarms,
        worker=workers.fleet.worker,
        requests_wait=admission.any_waits,
        is_tenant=is_tenant,
        now=now,
        metrics=common.metrics,
    )
    handovers = Handovers(
        hot,
        prewarms,
        fleet=workers.fleet,
        requests_wait=admission.any_waits,
        is_tenant=is_tenant,
        now=now,
        metrics=common.metrics,
    )
    proxies = build_proxies(common, workers, routing, admission, suspects=suspects, hot=hot)
    api = build_api(
        common, workers, routing, limits=limits, admission=admission, proxies=proxies, handovers=handovers
    )
    return Router(
        settings,
        common.metrics,
        workers=workers,
        routing=routing,
        limits=limits,
        admission=admission,
        prewarmer=prewarmer,
        api=api,
    )


def build_workers(
    common: Common,
    discovery: Discovery | None,
    contract_versions: AbstractSet[int],
    *,
    on_frame: Callable[[str, Frame], None],
    on_change: Callable[[], None],
    forget: Callable[[str], None],
    on_ended: Callable[[str, str], None],
    on_models: Callable[[Collection[str]], None],
) -> WorkersRoom:
    """`on_frame` gets each frame of a worker, `forget` the uid of each worker that leaves the fleet.

    `on_change` is called when one may have capacity or be ready, or none may be any more.
    `on_ended` gets uid and epoch of each that ended without draining, `on_models` all names of models.
    """
    settings, metrics = common.settings, common.metrics

    def on_ejected(uid: str, cause: Cause, reason: str, seconds: float) -> None:
        metrics.on_ejected(cause.value)
        _log.warning("worker ejected", uid=uid, cause=cause.value, reason=reason, seconds=round(seconds, 1))

    breakers = Breakers(settings.breaker, now=common.now, on_ejected=on_ejected)
    ghosts = GhostList(settings.ghost_blocks)

    def on_gone(uid: str) -> None:
        for forget_worker in (forget, breakers.forget, ghosts.forget):
            forget_worker(uid)

    def on_any_frame(uid: str, frame: Frame) -> None:
        on_frame(uid, frame)
        ghosts.frame_arrived(uid, frame)

    def on_any_end(uid: str, epoch: str) -> None:
        on_ended(uid, epoch)
        ghosts.ended(uid, epoch)

    liveness = LivenessWatch(settings.silence)
    upstream = Upstream(liveness=liveness)
    if discovery is None:
        discovery = _discovery(settings)
    dropped = asyncio.Event()
    index = PrefixIndex(settings.max_index_blocks, on_dropped=dropped.set)
    fleet = Fleet(
        discovery,
        upstream,
        index=index,
        on_frame=on_any_frame,
        on_change=on_change,
        on_gone=on_gone,
        on_ended=on_any_end,
        on_models=on_models,
        contract_versions=contract_versions,
    )

    def on_hung(uid: str) -> None:
        worker = fleet.worker(uid)
        if worker is not None:
            breakers.eject(uid, worker.epoch, Cause.SILENT, "neither answers nor sends events")

    sweeper = LivenessSweeper(liveness, worker_silence=fleet.seconds_since_last_message, on_hung=on_hung)
    encoders = Encoders(settings.tokenizers_path, upstream, fleet.workers)
    return WorkersRoom(
        discovery,
        fleet=fleet,
        ghosts=ghosts,
        breakers=breakers,
        encoders=encoders,
        upstream=upstream,
        liveness_sweeper=sweeper,
        index_sweeper=IndexSweeper(index, dropped),
    )


def _discovery(settings: RouterSettings) -> Discovery:
    if settings.cluster is not None:
        return KubernetesDiscovery(settings.cluster, settings.snapshot_path)
    if settings.endpoints_path is not None:
        return EndpointsFile(settings.endpoints_path, settings.endpoints)
    return StaticDiscovery(settings.endpoints)


def build_routing(
    common: Common, workers: WorkersRoom, leases: Leases, slow_workers: SlowWorkerDetector
) -> RoutingRoom:
    """`leases` and `slow_workers` forget the workers that leave the fleet."""
    return RoutingRoom(
        leases=leases,
        picker=Picker(workers.fleet.index, leases, common.settings.policy, workers.breakers),
        slow_workers=SlowWorkerEjector(slow_workers, common.now),
        hash_memory=BlockHashMemory(),
        decisions=DecisionRing(common.settings.ring_size),
    )


def build_admission(
    common: Common, workers: WorkersRoom, routing: RoutingRoom, limits: InFlightLimits
) -> Admission:
    """Orders requests; `limits` learn from it how long requests take, the index which blocks are used."""
    return Admission(
        common.settings.admission,
        limits=limits,
        workers=workers.fleet.workers,
        picker=routing.picker,
        leases=routing.leases,
        breakers=workers.breakers,
        capacity_changed=common.capacity_changed,
        metrics=common.metrics,
        touched=workers.fleet.index.touched,
        hold_seconds=workers.fleet.hold_seconds,
        is_settled=workers.encoders.is_settled,
    )


def build_proxies(
    common: Common,
    workers: WorkersRoom,
    routing: RoutingRoom,
    admission: Admission,
    *,
    suspects: CrashSuspects,
    hot: HotPrefixes,
) -> ProxyRoom:
    """Generations go to the workers that `admission` assigns, but for those that end engines.

    All requests share one budget of retries.
    """
    settings = common.settings
    retries = RetryBudget(settings.retry_budget, common.now, on_refused=common.metrics.on_refused_retry)
    exchanges = Exchanges(
        fleet=workers.fleet,
        comparison=CacheComparison(
            fleet=workers.fleet,
            predictor=routing.picker.predictor,
            causes=MissCauses(workers.fleet.index, workers.ghosts, workers.fleet.worker),
            hot=hot,
            metrics=common.metrics,
            now=common.now,
        ),
        upstream=workers.upstream,
        suspects=suspects,
        slow_workers=routing.slow_workers,
        metrics=common.metrics,
        life_id=common.life_id,
        now=common.now,
    )
    generations = Proxy(
        exchanges,
        admission=admission,
        retries=retries,
        suspects=suspects,
        metrics=common.metrics,
        write_seconds=settings.write_seconds,
        ping_seconds=settings.admission.ping_seconds,
    )
    texts = TextProxy(
        picker=routing.picker,
        upstream=workers.upstream,
        breakers=workers.breakers,
        retries=retries,
        write_seconds=settings.write_seconds,
    )
    return ProxyRoom(generations, texts)
