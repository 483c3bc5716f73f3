"""Endpoints from a cluster: ModelDeployments and the EndpointSlices of their Services.

Nothing in a request's way needs the API server: while it is away, or refuses, or contradicts itself, the last
good list stays, and a router that starts meanwhile takes the one that was kept on disk. `state` says how old
it is.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from warmfleet_contracts.names import MODEL_DEPLOYMENT_LABEL
from warmfleet_router.discovery.base import Discovered, DiscoveryState
from warmfleet_router.discovery.endpoint_builder import discovered_from
from warmfleet_router.discovery.informer import ApiServer, Informer, Watched, WatchTiming
from warmfleet_router.discovery.kubernetes_api import connect
from warmfleet_router.discovery.resources import (
    ENDPOINT_SLICES,
    MODEL_DEPLOYMENTS,
    EndpointSliceObject,
    ModelDeploymentObject,
)
from warmfleet_router.discovery.snapshot_file import LastGood, LastGoodFile
from warmfleet_router.errors import ApiServerError

COALESCE_SECONDS: Final = 0.05
"""A rollout changes a slice many times in a row."""
KEEP_SECONDS: Final = 5.0
"""The list is written to disk at most this often."""

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
    """A `Discovery`. Watched by one reader."""

    def __init__(
        self,
        settings: ClusterSettings,
        last_good: Path,
        *,
        timing: WatchTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
        connect: Callable[[Path | None], AbstractAsyncContextManager[ApiServer]] = connect,
    ) -> None:
        """`last_good` is the file that the list is kept in; `connect` opens the API server."""
        self._settings = settings
        self._file = LastGoodFile(last_good)
        self._timing = timing if timing is not None else WatchTiming()
        self._clock = clock
        self._connect = connect
        self._deployments: list[Informer[ModelDeploymentObject]] = []
        self._slices: list[Informer[EndpointSliceObject]] = []
        self._news = asyncio.Event()
        self._is_known = False
        self._problem = "the API server was not asked yet"
        self._failed_connections = 0

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
            errors=self._failed_connections + sum(informer.errors for informer in informers),
        )

    async def watch(self) -> AsyncGenerator[Discovered, None]:
        """See `Discovery`; never ends."""
        kept = None if self._is_known else await asyncio.to_thread(self._file.read, self._settings.namespaces)
        if kept is not None:
            self._is_known = True
            _log.info(
                "serving by the last list on disk until the API server answers", slices=len(kept.slices)
            )
            yield discovered_from(kept.deployments, kept.slices, self._settings.token_root)
        while True:
            try:
                async with self._connect(self._settings.kubeconfig) as api:
                    self._problem = ""
                    async with aclosing(self._follow(api)) as lists:
                        async for discovered in lists:
                            yield discovered
            except ApiServerError as error:
                self._failed_connections += 1
                if str(error) != self._problem:
                    self._problem = str(error)
                    _log.error("no connection to the cluster", reason=self._problem, detail=error.detail)
            await asyncio.sleep(self._timing.longest_backoff_seconds)

    async def _follow(self, api: ApiServer) -> AsyncGenerator[Discovered, None]:
        scopes = self._settings.namespaces or ("",)
        self._deployments = [
            self._informer(api, Watched(MODEL_DEPLOYMENTS, ModelDeploymentObject, namespace))
            for namespace in scopes
        ]
        self._slices = [
            self._informer(
                api,
                Watched(
                    ENDPOINT_SLICES, EndpointSliceObject, namespace, label_selector=MODEL_DEPLOYMENT_LABEL
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

    async def _changes(self) -> AsyncGenerator[LastGood, None]:
        """The objects whenever they changed, once all were listed; keeps them on disk."""
        last: LastGood | None = None
        unkept, keep_at = False, self._clock()
        while True:
            try:
                async with asyncio.timeout(max(keep_at - self._clock(), 0.0) if unkept else None):
                    await self._news.wait()
            except TimeoutError:
                pass
            else:
                self._news.clear()
                await asyncio.sleep(COALESCE_SECONDS)
            if not all(informer.is_synced for informer in self._informers):
                continue
            objects = self._objects()
            if objects != last:
                last, unkept = objects, True
                yield objects
            if unkept and self._clock() >= keep_at:
                await asyncio.to_thread(self._file.write, last)
                unkept, keep_at = False, self._clock() + KEEP_SECONDS

    def _objects(self) -> LastGood:
        return LastGood(
            namespaces=self._settings.namespaces,
            deployments=tuple(found for one in self._deployments for found in one.objects.values()),
            slices=tuple(found for one in self._slices for found in one.objects.values()),
        )

    def _informer(self, api: ApiServer, watched: Watched[Any]) -> Informer[Any]:
        return Informer(api, watched, timing=self._timing, clock=self._clock, on_change=self._news.set)

    @property
    def _informers(self) -> tuple[Informer[Any], ...]:
        return (*self._deployments, *self._slices)
