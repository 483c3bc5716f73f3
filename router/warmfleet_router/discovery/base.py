"""Endpoints, and the source of a list of them that may change."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import urlsplit

from warmfleet_router.errors import DiscoveryError

MAX_ENDPOINTS: Final = 1024
"""Most endpoints that one router serves."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The router's view of one worker: its identity and its address.

    Raises:
        DiscoveryError: the uid is empty or the address is no http(s) URL.
    """

    uid: str
    """Pod uid in a cluster; unique per worker in a local fleet. The worker's hello must repeat it."""
    name: str
    """Shown in logs and reports: pod name, or the name in the local fleet."""
    url: str
    """Base address without a path, such as `http://127.0.0.1:8100`."""
    served_names: tuple[str, ...] = ()
    """Model names that this endpoint serves; empty: those that the worker itself announces."""
    shared_cache: str = ""
    """The deployment all of whose callers share one cache; empty: each tenant has its own."""
    deployment: str = ""
    """The ModelDeployment that it belongs to, `namespace/name`; empty outside a cluster."""
    policy: str = ""
    """Routing policy of its deployment; empty: the router's own."""
    token: bytes = field(default=b"", repr=False)
    """The worker's token; empty on a loopback fleet without one."""

    def __post_init__(self) -> None:
        if not self.uid:
            raise DiscoveryError("an endpoint needs a uid")
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise DiscoveryError(f"url of endpoint {self.uid!r} is not an http(s) address")

    def is_reached_like(self, other: "Endpoint") -> bool:
        """Whether a connection to this one is one to `other`."""
        return (self.uid, self.url, self.token) == (other.uid, other.url, other.token)


@dataclass(frozen=True, slots=True)
class Discovered:
    """The endpoints and model names of one moment."""

    endpoints: tuple[Endpoint, ...]
    names: frozenset[str] | None = None
    """All model names, also of models that have no endpoint now; None where only workers know theirs."""
    hold_seconds: Mapping[str, float] = field(default_factory=dict)
    """Of the names whose models may sleep: how long a request may be held until one wakes."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """The ModelDeployment that has each name, `namespace/name`; empty outside a cluster."""


@dataclass(frozen=True, slots=True)
class DiscoveryState:
    """How much the last list can be relied on."""

    is_known: bool = True
    """Whether there is a list: a current one, or one that was current once."""
    problem: str = ""
    """Why the list may be out of date, fit to be shown; empty while it is current."""
    age_seconds: float = 0.0
    """Since the list was last known to be current; infinite if it never was in this process."""
    errors: int = 0
    """Failed attempts to bring it up to date, so far."""


class Discovery(Protocol):
    """A source of endpoint lists: fixed, a file, or a cluster."""

    @property
    def state(self) -> DiscoveryState: ...

    def watch(self) -> AsyncGenerator[Discovered, None]:
        """Yields the whole list now and after each change. When this ends or fails, the last list stays."""
        ...


def vetted_endpoints(endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """The list, checked as a whole.

    Raises:
        DiscoveryError: two endpoints share a uid, or there are more than `MAX_ENDPOINTS`.
    """
    listed = tuple(endpoints)
    if len(listed) > MAX_ENDPOINTS:
        raise DiscoveryError(f"{len(listed)} endpoints exceed the limit of {MAX_ENDPOINTS}")
    seen: set[str] = set()
    for endpoint in listed:
        if endpoint.uid in seen:
            raise DiscoveryError(f"two endpoints have the uid {endpoint.uid!r}")
        seen.add(endpoint.uid)
    return listed
