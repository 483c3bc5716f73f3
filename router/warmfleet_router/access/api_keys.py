"""The API keys in force: read at the start, followed in their file, the last valid ones kept."""

import asyncio
import contextlib
from pathlib import Path
from typing import Final

import structlog

from warmfleet_contracts.errors import KeyFileError
from warmfleet_contracts.keys import (
    MAX_KEY_FILE_BYTES,
    KeyEntry,
    KeyFile,
    KeyRing,
    is_expired,
    parse_key_file,
)
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.tenants import Tenant

POLL_SECONDS: Final = 1.0

_log = structlog.get_logger("warmfleet.router.keys")


def read_key_file(path: Path) -> bytes:
    """The file's content, bounded.

    Raises:
        KeyFileError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(MAX_KEY_FILE_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"cannot be read: {error.strerror}") from error


class KeySource:
    """Finds the tenant of a presented key. Follows `path`, if there is one, between `start` and `stop`.

    Content is compared, not times or inodes: that sees a file written in place, replaced, and swapped
    behind the links of a mounted Secret. A file that cannot be used leaves the last valid keys in force.
    """

    def __init__(
        self,
        keys: KeyFile,
        path: Path | None,
        metrics: RouterMetrics,
        *,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._path = path
        self._metrics = metrics
        self._poll_seconds = poll_seconds
        self._content: bytes | None = None
        self._problem = ""
        self._follower: asyncio.Task[None] | None = None
        self._use(keys)

    def find(self, presented: str) -> tuple[Tenant, KeyEntry] | None:
        """The tenant and the entry of a presented key, expired or not; None if it is in no entry."""
        entry = self._ring.entry(presented)
        return (self._tenants[entry.id], entry) if entry is not None else None

    def has_tenant(self, name: str) -> bool:
        """Whether a key of that tenant is in force."""
        last = self._last_keys.get(name)
        return last is not None and not is_expired(last)

    @property
    def key_count(self) -> int:
        return len(self._ring)

    @property
    def problem(self) -> str:
        """Why the file as it is now is not in force; empty if it is."""
        return self._problem

    async def start(self) -> None:
        """Begin to follow the file; returns at once."""
        if self._path is not None:
            self._follower = asyncio.create_task(self._follow(self._path), name="keys")

    async def stop(self) -> None:
        if self._follower is not None:
            self._follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._follower

    async def _follow(self, path: Path) -> None:
        while True:
            await self._look(path)
            await asyncio.sleep(self._poll_seconds)

    async def _look(self, path: Path) -> None:
        try:
            content = await asyncio.to_thread(read_key_file, path)
            if content == self._content:
                return
            self._content = content
            keys = await asyncio.to_thread(parse_key_file, content)
        except KeyFileError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                self._metrics.on_key_file_refused()
                _log.error("key file refused, the last good keys stay", path=str(path), reason=self._problem)
            if self._problem.startswith("cannot be read"):
                self._content = None  # the same content may come back
        else:
            self._use(keys)
            _log.info("keys loaded", keys=len(keys.keys), tenants=len(keys.tenants))

    def _use(self, keys: KeyFile) -> None:
        self._ring = KeyRing(keys)
        entries = {tenant.name: tenant for tenant in keys.tenants}
        self._tenants = {
            key.id: Tenant(
                name=key.tenant,
                key_id=key.id,
                sharing_group=entries[key.tenant].sharing_group or "",
                models=frozenset(key.models) if key.models is not None else None,
                scopes=frozenset(key.scopes),
                weight=entries[key.tenant].weight,
                max_in_flight_requests=entries[key.tenant].max_in_flight_requests,
                max_in_flight_tokens=entries[key.tenant].max_in_flight_tokens,
                best_priority=key.best_priority,
            )
            for key in keys.keys
        }
        # Of each tenant the key that lasts longest.
        by_end = sorted(keys.keys, key=lambda key: key.expires_unix_seconds)
        self._last_keys = {key.tenant: key for key in by_end}
        self._problem = ""
        self._metrics.on_keys_loaded(len(keys.keys))
