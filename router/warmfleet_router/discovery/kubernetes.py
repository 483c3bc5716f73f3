"""Endpoints from a cluster: ModelDeployments and the EndpointSlices of their Services.

No request needs the API server: while it cannot be reached, refuses or answers nonsense, the last list stays,
and a router that starts meanwhile takes the list on disk. `state` holds how old the list is.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from warmfleet_contracts.names import API_VERSION, MODEL_DEPLOYMENT_LABEL, PLURAL
from warmfleet_router.discovery.base import Discovered, DiscoveryState
from warmfleet_router.discovery.endpoint_builder import discovered_from
from warmfleet_router.discovery.resources import EndpointSliceObject, ModelDeploymentObject
from warmfleet_router.discovery.snapshot_file import ClusterSnapshot, SnapshotFile
from warmfleet_runtime.kubernetes.client import KubernetesClient
from warmfleet_runtime.kubernetes.errors import ApiServerError
from warmfleet_runtime.kubernetes.informer import Informer, ListWatchApi, Watched, WatchTiming

COALESCE_SECONDS: Final = 0.05
"""A rollout changes a slice many times in a row."""
REFUSED_SECONDS: Final = 30.0
"""A namespace that refuses its lists for this long is left out: its role binding is gone, and one team that
leaves must not stop new routers. An API server that has just started refuses for seconds."""
RECHECK_SECONDS: Final = 1.0
WRITE_SECONDS: Final = 5.0
"""The list is written to disk at most this often."""

Connect = Callable[[Path | None], AbstractAsyncContextManager[ListWatchApi]]
connect_to_cluster: Final[Connect] = partial(KubernetesClient.connect, user_agent="warmfleet-router")

_log = structlog.get_logger("warmfleet.router.discovery")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Which part of which cluster a router serves."""

    token_root: bytes = field(repr=False)
    """The workers' tokens are derived from it."""
    namespaces: tuple[str, ...] = ()
    """Where ModelDeployments are looked for; empty: in all namespaces."""
    kubeconfig: Path | None = None
    """None: the cluster that this process runs in."""


class KubernetesDiscovery:
    """A `Discovery` for workers that the operator runs. Watched by one reader."""

    def __init__(
        self,
        settings: ClusterSettings,
        snapshot: Path,
        *,
        timing: WatchTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
        connect: Connect = connect_to_cluster,
    ) -> None:
        """`snapshot` is the file that the list is written to; `connect` opens a client for a kubeconfig."""
        self._settings = settings
        self._file = SnapshotFile(snapshot)
        self._timing = timing if timing is not None else WatchTiming()
        self._clock = clock
        self._connect = connect
        self._deployments: list[Informer[ModelDeploymentObject]] = []
        self._slices: list[Informer[EndpointSliceObject]] = []
        self._changed = asyncio.Event()
        self._is_known = False
        self._problem = "the API server was not asked yet"
        self._earlier_errors = 0
        """Failed connections, and failures of informers that were replaced."""

    @property
    def state(self) -> DiscoveryState:
        """As of now."""
        informers = self._informers
        problems = (informer.problem for informer in informers if informer.problem)
        ages = [
            self._clock() - informer.current_at if informer.current_at is not None else float("inf")
            for informer in informers
        ]
        return DiscoveryState(
            is_known=self._is_known,
            problem=self._problem or next(problems, ""),
            age_seconds=max(ages, default=float("inf")),
            errors=self._earlier_errors + sum(informer.errors for informer in informers),
        )

    async def watch(self) -> AsyncGenerator[Discovered, None]:
        """See `Discovery`; never ends."""
        found = (
            None if self._is_known else await asyncio.to_thread(self._file.read, self._settings.namespaces)
        )
        if found is not None:
            self._is_known = True
            _log.info(
                "serving by the last list on disk until the API server answers", slices=len(found.slices)
            )
            yield discovered_from(found.deployments, found.slices, self._settings.token_root)
        while True:
            try:
                async with self._connect(self._settings.kubeconfig) as client:
                    self._problem = ""
                    async with aclosing(self._follow(client)) as lists:
                        async for discovered in lists:
                            yield discovered
            except ApiServerError as error:
                self._earlier_errors += 1
                if error.summary != self._problem:
                    self._problem = error.summary
                    _log.error("no connection to the cluster", reason=self._problem, detail=error.message)
            await asyncio.sleep(self._timing.longest_backoff_seconds)

    async def _follow(self, client: ListWatchApi) -> AsyncGenerator[Discovered, None]:
        scopes = self._settings.namespaces or ("",)
        self._deployments = [
            self._informer(client, Watched(API_VERSION, PLURAL, ModelDeploymentObject, namespace))
            for namespace in scopes
        ]
        self._slices = [
            self._informer(
                client,
                Watched(
                    "discovery.k8s.io/v1",
                    "endpointslices",
                    EndpointSliceObject,
                    namespace,
                    label_selector=MODEL_DEPLOYMENT_LABEL,
                ),
            )
            for namespace in scopes
        ]
        tasks = [asyncio.create_task(one.run(), name=f"watch {one.watched}") for one in self._informers]
        try:
            async with aclosing(self._changes()) as changes:
                async for objects in changes:
                    self._is_known = True
                    yield discovered_from(objects.deployments, objects.slices, self._settings.token_root)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # The count of errors must not fall when other informers take over.
            self._earlier_errors += sum(informer.errors for informer in self._informers)
            self._deployments, self._slices = [], []

    async def _changes(self) -> AsyncGenerator[ClusterSnapshot, None]:
        """The objects after each change, once all were listed; writes them to disk."""
        last: ClusterSnapshot | None = None
        unwritten, write_at = False, self._clock()
        while True:
            wait_seconds = max(write_at - self._clock(), 0.0) if unwritten else None
            try:
                async with asyncio.timeout(RECHECK_SECONDS if last is None else wait_seconds):
                    await self._changed.wait()
            except TimeoutError:
                pass
            else:
                self._changed.clear()
                await asyncio.sleep(COALESCE_SECONDS)
            if last is None and not self._is_listed:
                continue
            objects = self._objects()
            if objects != last:
                last, unwritten = objects, True
                yield objects
            if unwritten and self._clock() >= write_at:
                await asyncio.to_thread(self._file.write, last)
                unwritten, write_at = False, self._clock() + WRITE_SECONDS

    @property
    def _is_listed(self) -> bool:
        """Whether every namespace has been listed, or refuses to be, and not all of them do."""
        oldest = self._clock() - REFUSED_SECONDS

        def is_settled(informer: Informer[Any]) -> bool:
            refused_since = informer.refused_since
            return informer.synced.is_set() or (refused_since is not None and refused_since <= oldest)

        one_of_each = any(one.synced.is_set() for one in self._deployments) and any(
            one.synced.is_set() for one in self._slices
        )
        return one_of_each and all(map(is_settled, self._informers))

    def _objects(self) -> ClusterSnapshot:
        return ClusterSnapshot(
            namespaces=self._settings.namespaces,
            deployments=tuple(found for one in self._deployments for found in one.objects.values()),
            slices=tuple(found for one in self._slices for found in one.objects.values()),
        )

    def _informer(self, client: ListWatchApi, watched: Watched[Any]) -> Informer[Any]:
        return Informer(client, watched, timing=self._timing, clock=self._clock, on_change=self._changed.set)

    @property
    def _informers(self) -> tuple[Informer[Any], ...]:
        return (*self._deployments, *self._slices)
