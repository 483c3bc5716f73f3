"""A fleet for the length of a benchmark: one set of worker processes, and routers for each policy.

Routers only read the workers' event streams, so the routers of all policies share the workers. They have one
salt key, so that they compute the same block hashes.
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

from warmfleet_cli.bench.processes import START_SECONDS, BenchError, LocalProcess, spawned
from warmfleet_cli.bench.variants import Prediction, Variant
from warmfleet_contracts.cache.worker_api import CACHE_PATH
from warmfleet_contracts.names import SALT_KEY_VARIABLE

SETTLE_SECONDS: Final = 30.0
VLLM_START_SECONDS: Final = 1200.0
_POLL_SECONDS: Final = 0.05
_FLEET_PATH: Final = "/internal/fleet"
_DECISIONS_PATH: Final = "/internal/decisions"


@dataclass(frozen=True, slots=True)
class WorkerShape:
    """The settings of each worker in a `bench_fleet`."""

    model_path: Path
    served_name: str
    kv_cache_bytes: int
    block_size_tokens: int
    dtype: str
    max_model_length_tokens: int
    threads: int
    """CPU threads of each engine."""
    engine_type: str = "Warmfleet"

    @property
    def start_seconds(self) -> float:
        """Longest start of a worker; vLLM takes minutes on few cores."""
        return START_SECONDS if self.engine_type == "Warmfleet" else VLLM_START_SECONDS

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
            *("--engine-type", self.engine_type),
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
    """Workers that are ready, and the routers of each variant; `bench_fleet` starts it."""

    client: httpx.AsyncClient
    worker_urls: Sequence[str]
    router_urls: Mapping[Variant, Sequence[str]]

    async def clear_caches(self) -> None:
        """Drop every cached block, and wait until the index of every router is empty.

        Raises:
            BenchError: a worker refuses, or a router's index is not empty after `SETTLE_SECONDS`.
        """
        for url in self.worker_urls:
            response = await self.client.delete(f"{url}{CACHE_PATH}")
            if not response.is_success:
                raise BenchError(f"a worker does not clear its cache: status {response.status_code}")
        urls = {url for urls in self.router_urls.values() for url in urls}
        deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
        while not all([await self._is_empty(url) for url in urls]):
            if asyncio.get_running_loop().time() > deadline:
                raise BenchError(
                    f"a router's index is not empty {SETTLE_SECONDS:g} s after the caches were cleared"
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def total_blocks(self) -> int:
        """KV blocks of all workers together, as they report it."""
        url = next(iter(self.router_urls.values()))[0]
        return sum(endpoint.load.total_blocks for endpoint in await self._endpoints(url))

    async def predictions(self, variant: Variant, request_ids: Sequence[str]) -> list[Prediction]:
        """What the variant's routers predicted for these requests, where the worker's answer is known."""
        wanted = set(request_ids)
        found: list[Prediction] = []
        for url in self.router_urls[variant]:
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
        return len(endpoints) == len(self.worker_urls) and all(endpoint.empty for endpoint in endpoints)

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
    async with contextlib.AsyncExitStack() as stack:
        worker_processes = await _spawned(
            stack,
            {f"worker-{number}": shape.arguments(f"bench-{number}") for number in range(workers)},
            log_folder=log_folder,
            environment={},
        )
        # The socket is bound long before the model is loaded, so routers start beside the workers.
        worker_urls = [await process.listening() for process in worker_processes]
        endpoints = [
            argument
            for number, url in enumerate(worker_urls)
            for argument in ("--endpoint", f"bench-{number}={url}")
        ]
        policies = {
            policy: max(variant.routers for variant in variants if variant.policy == policy)
            for policy in dict.fromkeys(variant.policy for variant in variants)
        }
        router_processes = await _spawned(
            stack,
            {
                f"router-{policy}-{number}": _router_arguments(policy, number, endpoints)
                for policy, count in policies.items()
                for number in range(count)
            },
            log_folder=log_folder,
            environment={SALT_KEY_VARIABLE: secrets.token_hex(32)},
        )
        await _ready(worker_processes, client, shape.start_seconds)
        urls = iter(await _ready(router_processes, client, START_SECONDS))
        router_urls = {policy: [next(urls) for _ in range(count)] for policy, count in policies.items()}
        fleet = BenchFleet(
            client=client,
            worker_urls=worker_urls,
            router_urls={variant: router_urls[variant.policy][: variant.routers] for variant in variants},
        )
        await fleet.clear_caches()
        yield fleet


def _router_arguments(policy: str, number: int, endpoints: Sequence[str]) -> list[str]:
    return [
        "warmfleet_router",
        *("--host", "127.0.0.1"),
        *("--port", "0"),
        *("--router-id", f"bench-{policy}-{number}"),
        *("--policy", policy),
        *endpoints,
    ]


async def _spawned(
    stack: contextlib.AsyncExitStack,
    commands: Mapping[str, Sequence[str]],
    *,
    log_folder: Path,
    environment: Mapping[str, str],
) -> list[LocalProcess]:
    return [
        await stack.enter_async_context(
            spawned(name, arguments, log_folder=log_folder, environment=environment)
        )
        for name, arguments in commands.items()
    ]


async def _ready(processes: Sequence[LocalProcess], client: httpx.AsyncClient, seconds: float) -> list[str]:
    return list(await asyncio.gather(*(process.ready(client, seconds) for process in processes)))
