"""The settings of a router: flags, secrets from the environment, workers and keys from files."""

import argparse
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final

from warmfleet_contracts.cache.worker_tokens import secret_from_hex
from warmfleet_contracts.errors import KeyFileError, WarmfleetError
from warmfleet_contracts.keys import KeyFile, parse_key_file
from warmfleet_contracts.names import (
    OPERATOR_TOKEN_VARIABLE,
    POD_NAMESPACE_VARIABLE,
    SALT_KEY_VARIABLE,
    WORKER_TOKEN_ROOT_VARIABLE,
)
from warmfleet_router.access.api_keys import read_key_file
from warmfleet_router.admission.queue_bounds import (
    DEFAULT_HELD,
    DEFAULT_IN_FLIGHT,
    DEFAULT_WAKING,
    MIB,
    AdmissionSettings,
    Amount,
)
from warmfleet_router.api.cors import is_origin
from warmfleet_router.discovery.base import Endpoint, vetted_endpoints
from warmfleet_router.discovery.endpoints_file import read_endpoints
from warmfleet_router.discovery.kubernetes import ClusterSettings
from warmfleet_router.economics.ghost_list import DEFAULT_MAX_BLOCKS
from warmfleet_router.errors import DiscoveryError
from warmfleet_router.proxy.retry_budget import RetryBudgetSettings
from warmfleet_router.root_keys import read_root_keys
from warmfleet_router.routing.decision_ring import MAX_DECISIONS
from warmfleet_router.routing.policies import POLICIES
from warmfleet_router.routing.slow_workers import SlowWorkerSettings
from warmfleet_router.workers.breakers import BreakerSettings
from warmfleet_router.workers.liveness import LivenessSettings
from warmfleet_router.workers.prefix_index import DEFAULT_MAX_BLOCKS as DEFAULT_INDEX_BLOCKS
from warmfleet_runtime.home import warmfleet_home
from warmfleet_runtime.http.connections import MAX_CONNECTIONS
from warmfleet_runtime.http.listener import is_loopback

MIN_OPERATOR_TOKEN_CHARS: Final = 16
_BEARER: Final = re.compile(rb"[!-~]{%d,1024}" % MIN_OPERATOR_TOKEN_CHARS)
ALL_NAMESPACES: Final = "all"
MAX_NAMESPACES: Final = 64
"""Each costs two watches; with more namespaces, watch all of them."""
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_ROUTER_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")


class SettingsError(WarmfleetError):
    """A flag, a variable or the endpoints file is wrong; the text names it."""


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Everything that one router process is configured with."""

    endpoints: tuple[Endpoint, ...]
    """Those that never change."""
    salt_key: bytes = field(repr=False)
    salt_key_is_own: bool = False
    """Drawn at this start: another router, or the next start, does not share this one's salts."""
    cluster: ClusterSettings | None = None
    """Where workers are found; None: outside of a cluster."""
    endpoints_path: Path | None = None
    """Where further endpoints are followed."""
    host: str = "127.0.0.1"
    port: int = 8080
    """0 lets the system choose; the line on stdout names it."""
    policy: str = "LowestCost"
    router_id: str = "router"
    home: Path = Path()
    allow_anonymous: bool = False
    keys: KeyFile | None = field(default=None, repr=False)
    """The keys at the start; None serves all clients as one anonymous tenant."""
    keys_path: Path | None = None
    """Where the keys are followed."""
    operator_token: bytes = field(default=b"", repr=False)
    """By which the operator is known; empty where there is none."""
    open_metrics: bool = False
    """Whether `/metrics` needs no key."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may call from a browser; `*` means all."""
    linger_seconds: float = 0.0
    """For how long after SIGTERM it takes what still comes, until the last Service sends elsewhere."""
    drain_seconds: float = 300.0
    """How long live answers may go on after that."""
    write_seconds: float = 60.0
    """How long one write to a client may take before the client is given up."""
    ring_size: int = MAX_DECISIONS
    """Decisions kept for `/internal/decisions` and `/debug/decisions`."""
    ghost_blocks: int = DEFAULT_MAX_BLOCKS
    """Blocks of which it is kept why no worker holds them."""
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    outliers: SlowWorkerSettings = field(default_factory=SlowWorkerSettings)
    silence: LivenessSettings = field(default_factory=LivenessSettings)
    retry_budget: RetryBudgetSettings = field(default_factory=RetryBudgetSettings)
    max_connections: int = MAX_CONNECTIONS
    """Open client connections; beyond it the one that has waited longest for a request is closed."""
    max_index_blocks: int = DEFAULT_INDEX_BLOCKS
    """Blocks that the prefix index holds over all workers; a worker beyond it is routed by load only."""
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)

    @property
    def tokenizers_path(self) -> Path:
        return self.home / "router" / "tokenizers"

    @property
    def snapshot_path(self) -> Path:
        """The last list of the cluster's objects, for a start without the API server."""
        return self.home / "router" / "last-good.json"


def parse_settings(
    arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ
) -> RouterSettings:
    """Settings from the command line; exits with a usage error on a wrong flag."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        return _settings(given, environment)
    except WarmfleetError as error:
        parser.error(str(error))


def _settings(given: argparse.Namespace, environment: Mapping[str, str]) -> RouterSettings:
    if given.keys_file is not None and given.allow_anonymous:
        raise SettingsError("--allow-anonymous: with --keys-file no client is served without a key")
    if not (is_loopback(given.host) or given.allow_anonymous or given.keys_file is not None):
        raise SettingsError(
            f"--host {given.host}: clients without a key are served on loopback only; "
            "--keys-file requires keys, --allow-anonymous serves every client"
        )
    if _ROUTER_ID.fullmatch(given.router_id) is None:
        raise SettingsError(f"--router-id: expected 1 to 253 of A-Z a-z 0-9 . _ -, got {given.router_id!r}")
    for origin in given.cors_origin:
        if not is_origin(origin):
            raise SettingsError(f"--cors-origin: expected scheme://host[:port] or *, got {origin!r}")
    if given.root_keys is not None:
        environment = {**environment, **read_root_keys(given.root_keys)}
    cluster = _cluster(given, environment)
    endpoints = vetted_endpoints(_endpoint(text) for text in given.endpoint)
    if given.endpoints_file is not None:
        _check_endpoints(given.endpoints_file, endpoints)
    if cluster is not None and (endpoints or given.endpoints_file is not None):
        raise SettingsError(
            "--endpoint, --endpoints-file: with --discovery kubernetes the cluster names workers"
        )
    salt_key, is_own = _salt_key(environment)
    return RouterSettings(
        endpoints=endpoints,
        endpoints_path=given.endpoints_file,
        cluster=cluster,
        salt_key=salt_key,
        salt_key_is_own=is_own,
        host=given.host,
        port=given.port,
        policy=given.policy,
        router_id=given.router_id,
        home=warmfleet_home(environment),
        allow_anonymous=given.allow_anonymous,
        keys=_keys(given.keys_file) if given.keys_file is not None else None,
        keys_path=given.keys_file,
        operator_token=_operator_token(environment),
        open_metrics=given.open_metrics,
        cors_origins=tuple(given.cors_origin),
        linger_seconds=given.linger_seconds,
        drain_seconds=given.drain_seconds,
        max_connections=given.max_connections,
        ring_size=given.ring_size,
        ghost_blocks=given.ghost_blocks,
        max_index_blocks=given.max_index_blocks,
        admission=_admission(given),
    )


def _admission(given: argparse.Namespace) -> AdmissionSettings:
    return AdmissionSettings(
        max_in_flight=replace(
            DEFAULT_IN_FLIGHT, requests=given.max_in_flight, buffered_bytes=given.max_in_flight_mib * MIB
        ),
        max_held=Amount(given.max_held, given.max_held_mib * MIB, given.max_held_tokens),
        max_waking=Amount(given.max_waking, given.max_waking_mib * MIB, given.max_waking_tokens),
        max_wait_seconds=given.max_wait_seconds,
        max_held_seconds=given.max_held_seconds,
    )


def _count(text: str) -> int:
    with suppress(ValueError):
        if (value := int(text)) > 0:
            return value
    raise argparse.ArgumentTypeError(f"expected more than 0, got {text}")


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (value := float(text)) < float("inf"):
            return value
    raise argparse.ArgumentTypeError(f"expected more than 0, got {text}")


def _endpoint(text: str) -> Endpoint:
    uid, separator, url = text.partition("=")
    if not separator:
        raise SettingsError(f"--endpoint: expected uid=URL, got {text!r}")
    return Endpoint(uid=uid, name=uid, url=url)


def _check_endpoints(path: Path, fixed: tuple[Endpoint, ...]) -> None:
    """Refuse at the start what could later only leave the last list in force."""
    try:
        vetted_endpoints([*fixed, *read_endpoints(path)])
    except DiscoveryError as error:
        raise SettingsError(f"--endpoints-file: {error}") from error


def _keys(path: Path) -> KeyFile:
    try:
        return parse_key_file(read_key_file(path))
    except KeyFileError as error:
        raise SettingsError(f"--keys-file: {error}") from error


def effective_settings(settings: RouterSettings) -> dict[str, object]:
    """All settings for people to read. Of what is kept out of a repr, only whether it is set."""
    return _fields(settings)


def _fields(value: Any) -> dict[str, object]:
    shown: dict[str, object] = {}
    for item in fields(value):
        content = getattr(value, item.name)
        shown[item.name] = _shown(content) if item.repr else "set" if content else "not set"
    return shown


def _shown(value: object) -> object:
    match value:
        case Path():
            return str(value)
        case tuple():
            return [_shown(item) for item in value]
        case _:
            return _fields(value) if is_dataclass(value) else value


def _salt_key(environment: Mapping[str, str]) -> tuple[bytes, bool]:
    value = environment.get(SALT_KEY_VARIABLE, "")
    if not value:
        return secrets.token_bytes(32), True
    return secret_from_hex(value, SALT_KEY_VARIABLE), False


def _cluster(given: argparse.Namespace, environment: Mapping[str, str]) -> ClusterSettings | None:
    if given.discovery != "kubernetes":
        if given.namespace or given.kubeconfig is not None:
            raise SettingsError("--namespace, --kubeconfig: only with --discovery kubernetes")
        return None
    root = environment.get(WORKER_TOKEN_ROOT_VARIABLE, "")
    if not root:
        raise SettingsError(
            f"--discovery kubernetes: ${WORKER_TOKEN_ROOT_VARIABLE} is not set; workers require tokens"
        )
    own = environment.get(POD_NAMESPACE_VARIABLE, "")
    namespaces = sorted(set(given.namespace or ([own] if own else [])))
    if not namespaces:
        raise SettingsError(
            f"--namespace: name one, or {ALL_NAMESPACES}; ${POD_NAMESPACE_VARIABLE} is not set"
        )
    for namespace in namespaces:
        if _NAMESPACE.fullmatch(namespace) is None:
            raise SettingsError(f"--namespace: {namespace!r} is no name of a namespace")
    if len(namespaces) > MAX_NAMESPACES:
        raise SettingsError(f"--namespace: {len(namespaces)} exceed {MAX_NAMESPACES}; use {ALL_NAMESPACES}")
    return ClusterSettings(
        token_root=secret_from_hex(root, WORKER_TOKEN_ROOT_VARIABLE),
        namespaces=() if ALL_NAMESPACES in namespaces else tuple(namespaces),
        kubeconfig=given.kubeconfig,
    )


def _operator_token(environment: Mapping[str, str]) -> bytes:
    token = environment.get(OPERATOR_TOKEN_VARIABLE, "").strip().encode()
    if token and _BEARER.fullmatch(token) is None:
        raise SettingsError(
            f"${OPERATOR_TOKEN_VARIABLE}: expected at least {MIN_OPERATOR_TOKEN_CHARS} printable characters "
            "without spaces"
        )
    return token


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m warmfleet_router",
        description="Send OpenAI-compatible requests to the worker where they cost least.",
        epilog=f"The key that separates tenants' caches comes from ${SALT_KEY_VARIABLE} (hex, 32 bytes).",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, default=8080, help="port to listen on; 0 chooses a free one")
    add("--endpoint", action="append", default=[], metavar="UID=URL", help="a worker (repeatable)")
    add(
        "--endpoints-file",
        type=Path,
        help="JSON list of workers with uid, name, url and token, or an object with such endpoints and the "
        "names of their models; followed while it runs",
    )
    add("--discovery", choices=("static", "kubernetes"), default="static", help="where workers are found")
    add(
        "--namespace",
        action="append",
        default=[],
        help=f"where ModelDeployments are looked for (repeatable), or {ALL_NAMESPACES}; "
        f"default: ${POD_NAMESPACE_VARIABLE}",
    )
    add("--kubeconfig", type=Path, help="the cluster to look in, for a router outside of it")
    add(
        "--policy",
        choices=sorted(POLICIES),
        default="LowestCost",
        help="how a worker is chosen, where its deployment names no policy",
    )
    add("--router-id", default="router", help="this router's name among others")
    add("--allow-anonymous", action="store_true", help="serve clients without a key beyond loopback")
    add("--keys-file", type=Path, help="API keys, as `warmfleet keys` writes them; followed while it runs")
    add(
        "--root-keys",
        type=Path,
        help="folder of a mounted Secret with a release's root keys, instead of variables that hold them",
    )
    add("--open-metrics", action="store_true", help="serve /metrics without a key")
    add(
        "--cors-origin",
        action="append",
        default=[],
        help="origin of pages that may call, or * (repeatable)",
    )
    add("--linger-seconds", type=float, default=0.0, help="time after SIGTERM to take what still comes")
    add("--drain-seconds", type=float, default=300.0, help="time for live answers after that")
    add("--max-connections", type=_count, default=MAX_CONNECTIONS, help="open client connections")
    decisions = f"newest decisions that are kept; `/internal/decisions` lists at most {MAX_DECISIONS} of them"
    add("--ring-size", type=_count, default=MAX_DECISIONS, help=decisions)
    add(
        "--ghost-blocks",
        type=_count,
        default=DEFAULT_MAX_BLOCKS,
        help="blocks of which it is remembered why no worker holds them; more make evictions count as new",
    )
    blocks = "cached blocks known over all workers, 130 bytes each; a worker beyond it is chosen by load only"
    add("--max-index-blocks", type=_count, default=DEFAULT_INDEX_BLOCKS, help=blocks)
    in_flight, held, admission = DEFAULT_IN_FLIGHT, DEFAULT_HELD, AdmissionSettings()
    add("--max-in-flight", type=_count, default=in_flight.requests, help="requests at once; more get 429")
    buffered = "their bodies, prompts and plain answers, in MiB; more get 429"
    add("--max-in-flight-mib", type=_count, default=in_flight.buffered_bytes // MIB, help=buffered)
    add(
        "--max-held",
        type=_count,
        default=held.requests,
        help="requests that may wait for a worker with capacity",
    )
    add("--max-held-mib", type=_count, default=held.buffered_bytes // MIB, help="their bodies, in MiB")
    add("--max-held-tokens", type=_count, default=held.tokens, help="their prompts, in tokens")
    waking = DEFAULT_WAKING
    add(
        "--max-waking",
        type=_count,
        default=waking.requests,
        help="requests that may wait for sleeping models",
    )
    add("--max-waking-mib", type=_count, default=waking.buffered_bytes // MIB, help="their bodies, in MiB")
    by_size = "their prompts, in tokens, four bytes each"
    add("--max-waking-tokens", type=_count, default=waking.tokens, help=by_size)
    wait = "reject with 429 when the estimated wait exceeds this, and 16 wait, or 4 where it lasts"
    add("--max-wait-seconds", type=_seconds, default=admission.max_wait_seconds, help=wait)
    longest = "reject with 429 a request that has waited this long"
    add("--max-held-seconds", type=_seconds, default=admission.max_held_seconds, help=longest)
    return parser
