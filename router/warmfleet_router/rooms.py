"""What each room of one router consists of, once it is built."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.types import ASGIApp

from warmfleet_router.access.api_keys import KeySource
from warmfleet_router.api.health import HealthEndpoints
from warmfleet_router.discovery.base import Discovery
from warmfleet_router.economics.ghost_list import GhostList
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.proxy.proxy import Proxy
from warmfleet_router.proxy.text_proxy import TextProxy
from warmfleet_router.routing.block_hash_memory import BlockHashMemory
from warmfleet_router.routing.decision_ring import DecisionRing
from warmfleet_router.routing.leases import Leases
from warmfleet_router.routing.picker import Picker
from warmfleet_router.routing.slow_workers import SlowWorkerEjector
from warmfleet_router.settings import RouterSettings
from warmfleet_router.workers.breakers import Breakers
from warmfleet_router.workers.encoders import Encoders
from warmfleet_router.workers.fleet import Fleet
from warmfleet_router.workers.index_sweeper import IndexSweeper
from warmfleet_router.workers.liveness import LivenessSweeper
from warmfleet_router.workers.upstream import Upstream


class Part(Protocol):
    """Something that works between requests."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Common:
    """What several rooms are built from."""

    settings: RouterSettings
    life_id: str
    """Names this life of the router to workers."""
    now: Callable[[], float]
    """The clock of waits, rates and ejections, in seconds."""
    metrics: RouterMetrics
    capacity_changed: asyncio.Event
    """Set by what frees capacity of workers, awaited by what assigns it."""


@dataclass(frozen=True, slots=True)
class WorkersRoom:
    """What the router knows of its workers, and how it reaches them."""

    discovery: Discovery
    fleet: Fleet
    ghosts: GhostList
    breakers: Breakers
    encoders: Encoders
    upstream: Upstream
    liveness_sweeper: LivenessSweeper
    index_sweeper: IndexSweeper


@dataclass(frozen=True, slots=True)
class RoutingRoom:
    """How workers are chosen, and what the choice is charged to."""

    leases: Leases
    picker: Picker
    slow_workers: SlowWorkerEjector
    hash_memory: BlockHashMemory
    decisions: DecisionRing


@dataclass(frozen=True, slots=True)
class ProxyRoom:
    """What takes requests to workers."""

    generations: Proxy
    texts: TextProxy


@dataclass(frozen=True, slots=True)
class ApiRoom:
    """What clients and administrators reach."""

    health: HealthEndpoints
    keys: KeySource | None
    """None where the router serves all clients as one tenant."""
    app: ASGIApp
