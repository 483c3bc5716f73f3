"""The processes of a running fleet: the supervisor's record, and what each process reports over HTTP."""

import contextlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import httpx
import msgspec

from warmfleet_cli.local.state import FleetState, ProcessState, RunFolder
from warmfleet_contracts.cache.worker_api import CACHE_PATH
from warmfleet_contracts.decoding import UNDECODABLE

_TIMEOUT_SECONDS: Final = 3.0
_MAX_ENDPOINTS_BYTES: Final = 1024 * 1024


class CacheReport(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's cache in numbers."""

    block_size_tokens: int
    kv_bytes_per_token: int
    total_blocks: int
    pinned_blocks: int
    cached_blocks: int

    @property
    def capacity_tokens(self) -> int:
        return self.total_blocks * self.block_size_tokens

    @property
    def cached_tokens(self) -> int:
        return self.cached_blocks * self.block_size_tokens

    @property
    def pinned_tokens(self) -> int:
        return self.pinned_blocks * self.block_size_tokens


class LoadView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's load, as a router last received it."""

    running_sequences: int
    waiting_sequences: int


class BreakerReport(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a router sends a worker requests: closed, open or half-open, and why."""

    state: str = "closed"
    reason: str = ""
    left_seconds: float = 0.0


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """One process: the supervisor's record, its readiness, and what a router reports of it."""

    state: ProcessState
    is_answering: bool
    is_ready: bool
    wants_key: bool = False
    """Whether this router lists its workers only for a key with admin scope."""
    cache: CacheReport | None = None
    load: LoadView | None = None
    """Of a worker that a router reaches."""
    breaker: BreakerReport | None = None
    """Of a worker that a router reaches."""
    start_seconds: dict[str, float] = {}
    """How long the phases of a worker's start took, one after the other."""

    @property
    def phase(self) -> str:
        """One word for a table."""
        if self.is_ready and self.breaker is not None and self.breaker.state != "closed":
            return "Ejected" if self.breaker.state == "open" else "HalfOpen"
        if self.state.phase == "Ready" and not self.is_ready:
            return "NotReady" if self.is_answering else "NotAnswering"
        return self.state.phase


class _RoutedEndpoint(msgspec.Struct, frozen=True):
    name: str
    load: LoadView | None = None
    breaker: BreakerReport | None = None
    start_seconds: dict[str, float] = {}


class _RoutedFleet(msgspec.Struct, frozen=True):
    endpoints: list[_RoutedEndpoint]


class _Endpoint(msgspec.Struct, frozen=True):
    name: str
    token: str


class _EndpointsFile(msgspec.Struct, frozen=True):
    endpoints: tuple[_Endpoint, ...]


def observe(fleet: FleetState, folder: RunFolder, api_key: str = "") -> list[ProcessReport]:
    """Query the readiness of every process, the cache of every worker, and the loads from one router.

    `api_key` needs admin scope if the routers require keys; without it there are no loads.
    """
    tokens = _tokens(folder)
    with (
        httpx.Client(trust_env=False, timeout=_TIMEOUT_SECONDS) as client,
        ThreadPoolExecutor(max_workers=8) as threads,
    ):
        reports = list(
            threads.map(lambda process: _ask(client, process, tokens.get(process.name, "")), fleet.processes)
        )
        routed = _routed(client, reports, api_key)
    if routed is None:
        return [
            msgspec.structs.replace(report, wants_key=report.state.role == "router") for report in reports
        ]
    return [
        msgspec.structs.replace(
            report, load=endpoint.load, breaker=endpoint.breaker, start_seconds=endpoint.start_seconds
        )
        if (endpoint := routed.get(report.state.name)) is not None
        else report
        for report in reports
    ]


def _routed(
    client: httpx.Client, reports: Iterable[ProcessReport], api_key: str
) -> dict[str, _RoutedEndpoint] | None:
    """Endpoints by worker name, from the first router that answers; None if it refuses the key."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    for report in reports:
        if report.state.role == "router" and report.is_answering:
            with contextlib.suppress(httpx.HTTPError, *UNDECODABLE):
                answer = client.get(f"{report.state.url}/internal/fleet", headers=headers)
                if answer.status_code in {401, 403}:
                    return None
                routed = msgspec.json.decode(answer.raise_for_status().content, type=_RoutedFleet)
                return {endpoint.name: endpoint for endpoint in routed.endpoints}
    return {}


def _ask(client: httpx.Client, process: ProcessState, token: str) -> ProcessReport:
    if process.identity is None:
        return ProcessReport(state=process, is_answering=False, is_ready=False)
    try:
        is_ready = client.get(f"{process.url}/readyz").status_code == 200
    except httpx.HTTPError:
        return ProcessReport(state=process, is_answering=False, is_ready=False)
    cache = _cache(client, process, token) if is_ready and process.role == "worker" else None
    return ProcessReport(state=process, is_answering=True, is_ready=is_ready, cache=cache)


def _cache(client: httpx.Client, process: ProcessState, token: str) -> CacheReport | None:
    try:
        answer = client.get(f"{process.url}{CACHE_PATH}", headers={"authorization": f"Bearer {token}"})
        return msgspec.json.decode(answer.raise_for_status().content, type=CacheReport)
    except (httpx.HTTPError, *UNDECODABLE):
        return None


def _tokens(folder: RunFolder) -> dict[str, str]:
    try:
        with folder.endpoints_path.open("rb") as file:
            read = msgspec.json.decode(file.read(_MAX_ENDPOINTS_BYTES), type=_EndpointsFile)
    except (OSError, *UNDECODABLE):
        return {}
    return {endpoint.name: endpoint.token for endpoint in read.endpoints}
