"""The API server, and everything that is sent to it. No other module talks to it, but kopf's watches.

Objects are plain dictionaries. Every write asks the guard twice: before anything is done, and when its bytes
are about to leave, so that a process that was stopped in between sends nothing.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec

from warmfleet_contracts.names import CONFLICT_FIELD_MANAGER, FIELD_MANAGER, STATUS_FIELD_MANAGER
from warmfleet_operator.errors import (
    ClusterError,
    ConflictError,
    GoneError,
    OperatorError,
    RefusedError,
    ThrottledError,
    UnreachableError,
)
from warmfleet_operator.objects.kinds import EVENT, LEASE, MODEL_DEPLOYMENT, Kind, kind_of
from warmfleet_runtime.kubernetes.client import KubernetesClient
from warmfleet_runtime.kubernetes.decoding import decoded
from warmfleet_runtime.kubernetes.errors import ApiServerError, ConfigError
from warmfleet_runtime.kubernetes.lists import list_pages
from warmfleet_runtime.kubernetes.media_types import APPLY_PATCH, JSON, MERGE_PATCH

PAGE_SIZE: Final = 100
MAX_SELECTED: Final = 10_000
"""More selected objects than this are an error: those that were read would look like all of them."""
_DEFAULT_PAUSE_SECONDS: Final = 1.0
_NAMES_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

T = TypeVar("T")


class WriteGuard(Protocol):
    """Decides whether this process may write; `leadership.fence.Fence` is one."""

    def require(self) -> None:
        """Raises: NotLeadingError."""
        ...


@dataclass(frozen=True, slots=True)
class Connection:
    """How the API server is reached, for kopf."""

    server: str
    ca_path: str | None
    token: str | None
    certificate_path: str | None
    key_path: str | None


class _ListedMetadata(msgspec.Struct, frozen=True, rename="camel"):
    namespace: str
    name: str
    uid: str
    resource_version: str


class _ListedObject(msgspec.Struct, frozen=True):
    metadata: _ListedMetadata


@dataclass(frozen=True, slots=True)
class Listed:
    """One object of a list, as far as the list was asked for."""

    namespace: str
    name: str
    uid: str
    resource_version: int


class Cluster:
    """Reads and writes. All methods raise `ClusterError`; its subclasses stand for what to do next."""

    def __init__(self, client: KubernetesClient, guard: WriteGuard, write_seconds: float) -> None:
        self._client = client
        self._guard = guard
        self._write_seconds = write_seconds

    @classmethod
    @asynccontextmanager
    async def connected(
        cls, kubeconfig: Path | None, guard: WriteGuard, *, write_seconds: float, user_agent: str
    ) -> AsyncIterator["Cluster"]:
        """A cluster whose connections are closed at the end.

        Args:
            kubeconfig: the file, or None for the pod's service account.
            guard: asked before every write.
            write_seconds: a write without an answer is given up after this: no longer than the time between
                the guard's deadline and the moment when another replica may take over.
            user_agent: the name of this process in the cluster's audit log.

        Raises:
            OperatorError: there is no usable configuration.
        """
        try:
            async with KubernetesClient.connect(kubeconfig, user_agent=user_agent) as client:
                yield cls(client, guard, write_seconds)
        except ConfigError as error:
            where = "the pod's service account" if kubeconfig is None else str(kubeconfig)
            raise OperatorError(f"cannot reach the API server by {where}: {error.message}") from error

    async def connection(self) -> Connection:
        """How to reach the API server now; tokens change over time."""
        config = self._client.config
        authorization = await config.authorization()
        return Connection(
            server=config.server,
            ca_path=config.ca_path,
            token=authorization.split(" ", 1)[-1] if authorization else None,
            certificate_path=config.certificate_path,
            key_path=config.key_path,
        )

    # Reads.

    async def read(self, kind: Kind, namespace: str, name: str) -> dict[str, Any]:
        """One object; raises GoneError."""
        path = kind.path(namespace, name)
        with _translated_errors(f"GET {path}"):
            return await self._client.get(path)

    async def selected(
        self,
        kind: Kind,
        namespace: str,
        expected: type[T],
        *,
        labels: Mapping[str, str],
        fields: Mapping[str, str],
    ) -> list[T]:
        """All objects of a namespace that `labels` and `fields` select, each decoded as `expected`."""
        query = {"labelSelector": _selector(labels), "fieldSelector": _selector(fields)}
        path = kind.path(namespace)
        found: list[T] = []
        with _translated_errors(f"GET {path}"):
            async for page in list_pages(self._client, path, query, page_objects=PAGE_SIZE):
                found += [decoded(item, expected) for item in page.items or ()]
                if len(found) > MAX_SELECTED:
                    raise UnreachableError(f"GET {path}: more than {MAX_SELECTED} objects are selected")
        return found

    async def names(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Listed]:
        """Names and versions of all objects that `selector` selects, in one namespace or in all."""
        path, query = kind.path(namespace), {"labelSelector": selector} if selector else {}
        listed: list[Listed] = []
        with _translated_errors(f"GET {path}"):
            pages = list_pages(self._client, path, query, page_objects=PAGE_SIZE, accept=_NAMES_ONLY)
            async for page in pages:
                for item in page.items or ():
                    found = decoded(item, _ListedObject).metadata
                    listed.append(Listed(found.namespace, found.name, found.uid, int(found.resource_version)))
        return listed

    # Writes.

    async def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Server-side apply of a whole object; what others own of it stays theirs unless we name it."""
        metadata = manifest["metadata"]
        path = kind_of(manifest).path(metadata["namespace"], metadata["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._write("PATCH", path, query, manifest, content_type=APPLY_PATCH)

    async def apply_status(
        self, namespace: str, name: str, uid: str, status: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Replace the status of a ModelDeployment; ConflictError if the name is another object's by now."""
        return await self._apply_status(namespace, name, uid, status, STATUS_FIELD_MANAGER)

    async def apply_conflict(
        self, namespace: str, name: str, uid: str, conditions: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Replace the conditions of `CONFLICT_FIELD_MANAGER`; the rest of the status stays its owner's."""
        status = {"conditions": list(conditions)}
        return await self._apply_status(namespace, name, uid, status, CONFLICT_FIELD_MANAGER)

    async def _apply_status(
        self, namespace: str, name: str, uid: str, status: Mapping[str, Any], manager: str
    ) -> dict[str, Any]:
        body = {
            "apiVersion": MODEL_DEPLOYMENT.api_version,
            "kind": MODEL_DEPLOYMENT.name,
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "status": status,
        }
        path = MODEL_DEPLOYMENT.path(namespace, name, "status")
        query = {"fieldManager": manager, "force": "true"}
        return await self._write("PATCH", path, query, body, content_type=APPLY_PATCH)

    async def merge(
        self, kind: Kind, namespace: str, name: str, changes: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Change a few fields of an object that exists."""
        query = {"fieldManager": FIELD_MANAGER}
        return await self._write(
            "PATCH", kind.path(namespace, name), query, changes, content_type=MERGE_PATCH
        )

    async def create(self, kind: Kind, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object; ConflictError if it is there already."""
        path = kind.path(body["metadata"]["namespace"])
        return await self._write("POST", path, {"fieldManager": FIELD_MANAGER}, body)

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete exactly this object and what it owns; ConflictError if the name is another's by now."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        await self._write("DELETE", kind.path(namespace, name), {}, body)

    async def record(self, event: Mapping[str, Any]) -> None:
        """Post an event, or count it up where its name is taken."""
        namespace, name = event["metadata"]["namespace"], event["metadata"]["name"]
        try:
            await self._write("POST", EVENT.path(namespace), {}, event)
        except ConflictError:
            known = await self.read(EVENT, namespace, name)
            count = int((known.get("series") or {}).get("count", 1)) + 1
            series = {"series": {"count": count, "lastObservedTime": event["eventTime"]}}
            await self._write("PATCH", EVENT.path(namespace, name), {}, series, content_type=MERGE_PATCH)

    # The lease decides who may write, so it is written without asking.

    async def create_lease(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make the lease; ConflictError if another was first."""
        return await self._write_lease("POST", LEASE.path(body["metadata"]["namespace"]), body)

    async def replace_lease(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the lease as it was read; ConflictError if another was first."""
        metadata = body["metadata"]
        path = LEASE.path(metadata["namespace"], metadata["name"])
        return await self._write_lease("PUT", path, body)

    async def _write(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any],
        content_type: str = JSON,
    ) -> dict[str, Any]:
        self._guard.require()
        with _translated_errors(f"{method} {path}"):
            return await self._client.request(
                method,
                path,
                query=query,
                body=body,
                content_type=content_type,
                timeout_seconds=self._write_seconds,
                before_send=self._guard.require,
            )

    async def _write_lease(self, method: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        with _translated_errors(f"{method} {path}"):
            return await self._client.request(method, path, body=body, timeout_seconds=self._write_seconds)


def _selector(wanted: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in wanted.items())


@contextmanager
def _translated_errors(request: str) -> Iterator[None]:
    try:
        yield
    except ApiServerError as error:
        raise _error(error, request) from error


def _error(error: ApiServerError, request: str) -> ClusterError:
    message = error.message or error.summary
    match error.status:
        case 404 | 410:
            return GoneError(message)
        case 409:
            return ConflictError(message)
        case 429:
            pause = error.retry_after_seconds
            return ThrottledError(f"{request}: {message}", _DEFAULT_PAUSE_SECONDS if pause is None else pause)
        case 400 | 403 | 405 | 413 | 415 | 422:
            return RefusedError(message)
        case _:
            return UnreachableError(f"{request}: {error}")
