"""Where endpoints come from: a list that may change, whatever knows it."""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import urlsplit

from warmfleet_router.errors import DiscoveryError

MAX_ENDPOINTS: Final = 1024
"""Most endpoints that one router serves."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The router's view of one worker: who it should be and where it answers.

    Raises:
        DiscoveryError: the uid is empty or the address is no http(s) URL.
    """

    uid: str
    """Pod uid in a cluster; unique per worker in a local fleet. The worker's hello must repeat it."""
    name: str
    """For people: pod name, or the name in the local fleet."""
    url: str
    """Base address without a path, such as `http://127.0.0.1:8100`."""
    served_names: tuple[str, ...] = ()
    """Model names that this endpoint answers to; empty means those that the worker itself announces."""
    shared_cache: str = ""
    """The deployment all of whose callers share one cache; empty: each tenant has its own."""
    token: bytes = field(default=b"", repr=False)
    """The worker's token; empty on a loopback fleet without one."""

    def __post_init__(self) -> None:
        if not self.uid:
            raise DiscoveryError("an endpoint needs a uid")
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise DiscoveryError(f"url of endpoint {self.uid!r} is not an http(s) address")


class Discovery(Protocol):
    """A source of endpoint lists."""

    def watch(self) -> AsyncIterator[Sequence[Endpoint]]:
        """The whole list now and again after each change. Ending or failing keeps the last list."""
        ...


class StaticDiscovery:
    """A list that never changes.

    Raises:
        DiscoveryError: two endpoints share a uid, or there are more than `MAX_ENDPOINTS`.
    """

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._endpoints = vetted_endpoints(endpoints)

    async def watch(self) -> AsyncIterator[Sequence[Endpoint]]:
        """The list, once."""
        yield self._endpoints


def vetted_endpoints(endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """The list if it can be served as a whole.

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
