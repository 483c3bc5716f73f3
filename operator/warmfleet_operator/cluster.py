"""The API server, and everything that is sent to it. No other module talks to it, but the informer's watches.

Objects are plain dictionaries. Every write asks the fence twice: before anything is done, and when its bytes
are about to leave, so that a process that was stopped in between sends nothing.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from warmfleet_contracts.names import FIELD_MANAGER, STATUS_FIELD_MANAGER
from warmfleet_operator.errors import (
    ClusterError,
    ConflictError,
    GoneError,
    NotLeadingError,
    OperatorError,
    RefusedError,
    ThrottledError,
    UnreachableError,
)
from warmfleet_operator.leadership.fence import Fence
from warmfleet_operator.objects.kinds import EVENT, LEASE, MODEL_DEPLOYMENT, Kind, kind_of

READ_SECONDS: Final = 30.0
PAGE_SIZE: Final = 100
MAX_MESSAGE_LENGTH: Final = 1024
_DEFAULT_PAUSE_SECONDS: Final = 1.0
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_NAMES_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

_fenced: ContextVar[bool] = ContextVar("fenced", default=False)
"""Whether the request that this task sends is a write of the leader."""


@dataclass(frozen=True, slots=True)
class Connection:
    """How the API server is reached, for the informer."""

    server: str
    ca_path: str | None
    token: str | None
    certificate_path: str | None
    key_path: str | None


@dataclass(frozen=True, slots=True)
class Listed:
    """One object of a list, as far as the list was asked for."""

    namespace: str
    name: str
    uid: str
    resource_version: int


class Cluster:
    """Reads and writes. All methods raise `ClusterError`; what each of its kinds means stands there."""

    def __init__(self, api: ApiClient, fence: Fence, write_seconds: float) -> None:
        self._api = api
        self._fence = fence
        self._write_seconds = write_seconds

    @classmethod
    @asynccontextmanager
    async def connected(
        cls, kubeconfig: Path | None, fence: Fence, *, write_seconds: float, user_agent: str
    ) -> AsyncIterator["Cluster"]:
        """A client that is closed at the end.

        Args:
            kubeconfig: the file, or None for the pod's service account.
            fence: asked before every write.
            write_seconds: a write without an answer is given up after this: no longer than the time between
                the fence's deadline and the moment when another replica may take over.
            user_agent: how the audit log of the cluster names this process.

        Raises:
            OperatorError: there is no usable configuration.
        """
        configuration = await _configuration(kubeconfig)
        trace = aiohttp.TraceConfig()

        async def about_to_send(session: object, context: SimpleNamespace, parameters: object) -> None:
            del session, context, parameters
            if _fenced.get():
                fence.require()

        # Headers leave together with the body, which every write has. No earlier moment would do: turns of
        # the event loop lie between a connection and its first bytes.
        trace.on_request_chunk_sent.append(about_to_send)
        configuration.trace_configs = [trace]
        # A proxy for the model hub is none for the API server.
        configuration.client_session_kwargs = {"trust_env": False}
        api = ApiClient(configuration)
        api.user_agent = user_agent
        async with api:
            yield cls(api, fence, write_seconds)

    async def connection(self) -> Connection:
        """How to reach the API server now; tokens change over time."""
        configuration = self._api.configuration
        token = await configuration.get_api_key_with_prefix("BearerToken")
        return Connection(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            token=token.split(" ", 1)[-1] if token else None,
            certificate_path=configuration.cert_file,
            key_path=configuration.key_file,
        )

    # Reads.

    async def read(self, kind: Kind, namespace: str, name: str) -> dict[str, Any]:
        """One object; raises GoneError."""
        return await self._request("GET", kind.path(namespace, name))

    async def selected(self, kind: Kind, namespace: str, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """The objects of a namespace that carry `labels`; at most a page of them."""
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        query = {"labelSelector": selector, "limit": str(PAGE_SIZE)}
        answer = await self._request("GET", kind.path(namespace), query)
        return list(answer.get("items") or ())

    async def names(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Listed]:
        """Names and versions of all objects that `selector` selects, in one namespace or in all."""
        listed: list[Listed] = []
        query = {"limit": str(PAGE_SIZE)} | ({"labelSelector": selector} if selector else {})
        while True:
            answer = await self._request("GET", kind.path(namespace), query, accept=_NAMES_ONLY)
            for item in answer.get("items") or ():
                metadata = item["metadata"]
                version = int(metadata["resourceVersion"])
                listed.append(Listed(metadata["namespace"], metadata["name"], metadata["uid"], version))
            token = (answer.get("metadata") or {}).get("continue")
            if not token:
                return listed
            query["continue"] = token

    # Writes.

    async def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Server-side apply of a whole object; what others own of it stays theirs unless we name it."""
        metadata = manifest["metadata"]
        path = kind_of(manifest).path(metadata["namespace"], metadata["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._write("PATCH", path, query, manifest, content_type=_APPLY)

    async def apply_status(
        self, namespace: str, name: str, uid: str, status: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Replace the status of a ModelDeployment; ConflictError if the name is another object's by now."""
        body = {
            "apiVersion": MODEL_DEPLOYMENT.api_version,
            "kind": MODEL_DEPLOYMENT.name,
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "status": status,
        }
        path = MODEL_DEPLOYMENT.path(namespace, name, "status")
        query = {"fieldManager": STATUS_FIELD_MANAGER, "force": "true"}
        return await self._write("PATCH", path, query, body, content_type=_APPLY)

    async def merge(
        self, kind: Kind, namespace: str, name: str, changes: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Change a few fields of an object that exists."""
        query = {"fieldManager": FIELD_MANAGER}
        return await self._write("PATCH", kind.path(namespace, name), query, changes, content_type=_MERGE)

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
            await self._write("PATCH", EVENT.path(namespace, name), {}, series, content_type=_MERGE)

    # The lease decides who may write, so it is written without asking.

    async def create_lease(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make the lease; ConflictError if another was first."""
        return await self._request("POST", LEASE.path(body["metadata"]["namespace"]), body=body, write=True)

    async def replace_lease(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the lease as it was read; ConflictError if another was first."""
        metadata = body["metadata"]
        path = LEASE.path(metadata["namespace"], metadata["name"])
        return await self._request("PUT", path, body=body, write=True)

    async def _write(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any],
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        self._fence.require()
        reset = _fenced.set(True)
        try:
            return await self._request(method, path, query, body=body, content_type=content_type, write=True)
        finally:
            _fenced.reset(reset)

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Mapping[str, Any] | None = None,
        accept: str = "application/json",
        content_type: str = "application/json",
        write: bool = False,
    ) -> dict[str, Any]:
        headers = {"Accept": accept, "Content-Type": content_type, "User-Agent": self._api.user_agent}
        url = self._api.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        seconds = self._write_seconds if write else READ_SECONDS
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
            response = await self._api.call_api(method, url, headers, body, _request_timeout=timeout)
            content: bytes = await response.read()  # type: ignore[no-untyped-call] # as the library has it
        except (aiohttp.ClientError, OSError, TimeoutError, config.ConfigException) as error:
            if isinstance(error.__cause__, NotLeadingError):  # the fence, asked while the body was being sent
                raise error.__cause__ from None
            raise UnreachableError(f"{method} {path}: {str(error) or type(error).__name__}") from error
        answer = _decoded(content)
        if response.status < 300:
            return answer
        raise _error(response.status, f"{method} {path}", answer, response.headers.get("Retry-After"))


async def _configuration(kubeconfig: Path | None) -> Configuration:
    configuration = Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(configuration)  # type: ignore[no-untyped-call] # as the library has it
        else:
            load = config.load_kube_config(  # type: ignore[no-untyped-call] # as the library has it
                str(kubeconfig), client_configuration=configuration
            )
            await load
    except (config.ConfigException, OSError, ValueError) as error:
        where = "the pod's service account" if kubeconfig is None else str(kubeconfig)
        raise OperatorError(f"cannot reach the API server by {where}: {error}") from error
    return configuration


def _decoded(content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content or b"{}")
    except ValueError:  # a proxy's error page
        return {"message": content[:MAX_MESSAGE_LENGTH].decode(errors="replace")}
    return answer if isinstance(answer, dict) else {}


def _error(status: int, request: str, answer: Mapping[str, Any], retry_after: str | None) -> ClusterError:
    message = str(answer.get("message") or f"answered {status}")[:MAX_MESSAGE_LENGTH]
    match status:
        case 404 | 410:
            return GoneError(message)
        case 409:
            return ConflictError(message)
        case 429:
            asked = retry_after if retry_after and retry_after.isdecimal() else ""
            return ThrottledError(f"{request}: {message}", float(asked or _DEFAULT_PAUSE_SECONDS))
        case 400 | 403 | 405 | 413 | 415 | 422:
            return RefusedError(message)
        case _:
            return UnreachableError(f"{request}: {status}: {message}")
