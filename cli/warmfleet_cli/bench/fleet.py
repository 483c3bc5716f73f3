"""A fleet for the length of a benchmark: worker processes once, router processes per policy beside them.

Routers only listen to the workers' event streams, so several of them stand over the same workers without
disturbing each other; one salt key lets them name the same blocks.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import msgspec

from warmfleet_cli.bench.prefix_results import Prediction, Variant
from warmfleet_cli.bench.processes import BenchError, LocalProcess, running
from warmfleet_contracts.worker_api import CACHE_PATH

SETTLE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05
_SALT_KEY_VARIABLE: Final = "WARMFLEET_SALT_KEY"
_FLEET_PATH: Final = "/internal/fleet"
_DECISIONS_PATH: Final = "/internal/decisions"


@dataclass(frozen=True, slots=True)
class WorkerShape:
    """How each worker of the fleet is started."""

    model_path: Path
    served_name: str
    kv_cache_bytes: int
    block_size_tokens: int
    dtype: str
    max_model_length_tokens: int
    threads: int
    """CPU threads of each engine."""

    def arguments(self, uid: str) -> list[str]:
        """What follows `python -m`."""
        return [
            "warmfleet_worker",
            *("--model", str(self.model_path)),
            *("--served-name", self.served_name),
            *("--host", "127.0.0.1"),
            *("--port", "0"),
            *("--uid", uid),
            *("--kv-cache-bytes", str(self.kv_cache_bytes)),
            *("--block-size-tokens", str(self.block_size_tokens)),
            *("--dtype", self.dtype),
            *("--max-model-length-tokens", str(self.max_model_length_tokens)),
            *("--threads", str(self.threads)),
        ]


class _Load(msgspec.Struct):
    pinned_blocks: int = 0
    total_blocks: int = 0


class _Endpoint(msgspec.Struct):
    uid: str
    ready: bool
    precise: bool
    resident_blocks: int
    load: _Load = msgspec.field(default_factory=_Load)

    @property
    def empty(self) -> bool:
        return self.ready and self.precise and not self.resident_blocks and not self.load.pinned_blocks


class _Fleet(msgspec.Struct):
    endpoints: list[_Endpoint]


class _Decision(msgspec.Struct):
    request_id: str
    predicted_cached_tokens: int = 0
    actual_cached_tokens: int | None = None


class _Decisions(msgspec.Struct):
    decisions: list[_Decision]


@dataclass(frozen=True, slots=True)
class BenchFleet:
    """Workers that are ready, and the routers of each variant."""

    client: httpx.AsyncClient
    workers: Sequence[LocalProcess]
    routers: Mapping[Variant, Sequence[LocalProcess]]

    def router_urls(self, variant: Variant) -> list[str]:
        return [router.url for router in self.routers[variant]]

    async def clear_caches(self) -> None:
        """Drop every cached block, and wait until every router knows.

        Raises:
            BenchError: a worker refuses, or a router's index is not empty after `SETTLE_SECONDS`.
        """
        for worker in self.workers:
            response = await self.client.delete(f"{worker.url}{CACHE_PATH}")
            if not response.is_success:
                raise BenchError(f"{worker.name} does not clear its cache: status {response.status_code}")
        urls = {router.url for routers in self.routers.values() for router in routers}
        deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
        while not all([await self._is_empty(url) for url in urls]):
            if asyncio.get_running_loop().time() > deadline:
                raise BenchError(
                    f"a router's index is not empty {SETTLE_SECONDS:g} s after the caches were cleared"
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def total_blocks(self) -> int:
        """KV blocks of all workers together, as they report them."""
        router = next(iter(self.routers.values()))[0]
        return sum(endpoint.load.total_blocks for endpoint in await self._endpoints(router.url))

    async def predictions(self, variant: Variant, request_ids: Sequence[str]) -> list[Prediction]:
        """What the variant's routers predicted for these requests, where the worker's answer is known."""
        wanted = set(request_ids)
        found: list[Prediction] = []
        for url in self.router_urls(variant):
            response = await self.client.get(f"{url}{_DECISIONS_PATH}", params={"limit": 1000})
            response.raise_for_status()
            found.extend(
                Prediction(decision.predicted_cached_tokens, decision.actual_cached_tokens)
                for decision in msgspec.json.decode(response.content, type=_Decisions).decisions
                if decision.request_id in wanted and decision.actual_cached_tokens is not None
            )
        return found

    async def _is_empty(self, router_url: str) -> bool:
        endpoints = await self._endpoints(router_url)
        return len(endpoints) == len(self.workers) and all(endpoint.empty for endpoint in endpoints)

    async def _endpoints(self, router_url: str) -> list[_Endpoint]:
        response = await self.client.get(f"{router_url}{_FLEET_PATH}")
        response.raise_for_status()
        return msgspec.json.decode(response.content, type=_Fleet).endpoints


@contextlib.asynccontextmanager
async def bench_fleet(
    shape: WorkerShape,
    *,
    workers: int,
    variants: Sequence[Variant],
    client: httpx.AsyncClient,
    log_folder: Path,
) -> AsyncIterator[BenchFleet]:
    """Start `workers` workers, then the routers of all variants; stop everything when the block ends.

    A policy's routers are shared by its variants: LowestCost behind two routers uses the router of
    LowestCost behind one, and a second beside it.

    Raises:
        BenchError: a process does not start, or a router does not see every worker.
    """
    environment = {_SALT_KEY_VARIABLE: secrets.token_hex(32)}
    async with contextlib.AsyncExitStack() as stack:
        started = await _started(
            stack,
            {f"worker-{number}": shape.arguments(f"bench-{number}") for number in range(workers)},
            client=client,
            log_folder=log_folder,
            environment={},
        )
        endpoints = [
            argument
            for number, worker in enumerate(started)
            for argument in ("--endpoint", f"bench-{number}={worker.url}")
        ]
        routers: dict[str, list[LocalProcess]] = {}
        for policy in dict.fromkeys(variant.policy for variant in variants):
            count = max(variant.routers for variant in variants if variant.policy == policy)
            names = [f"router-{policy}-{number}" for number in range(count)]
            routers[policy] = await _started(
                stack,
                {name: _router_arguments(name, policy, endpoints) for name in names},
                client=client,
                log_folder=log_folder,
                environment=environment,
            )
        fleet = BenchFleet(
            client=client,
            workers=started,
            routers={variant: routers[variant.policy][: variant.routers] for variant in variants},
        )
        await fleet.clear_caches()
        yield fleet


def _router_arguments(name: str, policy: str, endpoints: Sequence[str]) -> list[str]:
    return [
        "warmfleet_router",
        *("--host", "127.0.0.1"),
        *("--port", "0"),
        *("--router-id", name),
        *("--policy", policy),
        *endpoints,
    ]


async def _started(
    stack: contextlib.AsyncExitStack,
    commands: Mapping[str, Sequence[str]],
    *,
    client: httpx.AsyncClient,
    log_folder: Path,
    environment: Mapping[str, str],
) -> list[LocalProcess]:
    return [
        await stack.enter_async_context(
            running(name, arguments, client=client, log_folder=log_folder, environment=environment)
        )
        for name, arguments in commands.items()
    ]
