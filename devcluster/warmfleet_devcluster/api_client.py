"""A small client of the Kubernetes API for raw JSON objects, authenticated by a client certificate."""

import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import yaml

from warmfleet_contracts.errors import WarmfleetError

Json = dict[str, Any]

STRATEGIC_MERGE: Final = "application/strategic-merge-patch+json"
_MAX_EVENT_BYTES: Final = 8 << 20
_WATCH_SECONDS: Final = 300
_REQUEST_SECONDS: Final = 30.0


class ApiError(WarmfleetError):
    """The API server refused a request or could not be reached (status 0)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class ApiClient:
    """Requests against one API server as one identity. Use as an async context manager."""

    def __init__(self, server: str, tls: ssl.SSLContext) -> None:
        self._server = server.rstrip("/")
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def from_kubeconfig(cls, path: Path) -> Self:
        """The current context of the kubeconfig at `path`; raises ApiError when it is incomplete."""
        try:
            config = yaml.safe_load(path.read_text())
            current = config["current-context"]
            context = _named(config["contexts"], current)["context"]
            cluster = _named(config["clusters"], context["cluster"])["cluster"]
            user = _named(config["users"], context["user"])["user"]
            tls = ssl.create_default_context(cadata=_material(cluster, "certificate-authority").decode())
            with tempfile.TemporaryDirectory() as folder:
                # ssl loads client certificates from files only.
                pair = Path(folder, "pair.pem")
                pair.touch(mode=0o600)
                pair.write_bytes(
                    _material(user, "client-certificate") + b"\n" + _material(user, "client-key"),
                )
                tls.load_cert_chain(pair)
            return cls(cluster["server"], tls)
        except (KeyError, TypeError, OSError, ValueError, yaml.YAMLError) as error:
            raise ApiError(0, "InvalidKubeconfig", f"{path} is no usable kubeconfig: {error!r}") from error

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=0),
            timeout=aiohttp.ClientTimeout(total=_REQUEST_SECONDS),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Json | None = None,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        """The decoded answer. Raises ApiError, with status 0 when there was no answer."""
        assert self._session is not None
        try:
            async with self._session.request(
                method,
                self._server + path,
                data=None if body is None else json.dumps(body).encode(),
                params=params,
                headers={"Content-Type": content_type, "Accept": "application/json"},
            ) as response:
                answer = await response.read()
                if response.status >= 400:
                    raise _refusal(response.status, answer)
                decoded: Json = json.loads(answer)
                return decoded
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiError(0, "Unreachable", f"{method} {path}: {error!r}") from error

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        return await self.request("GET", path, params=params)

    async def post(self, path: str, body: Json) -> Json:
        return await self.request("POST", path, body=body)

    async def patch(self, path: str, body: Json, content_type: str = STRATEGIC_MERGE) -> Json:
        return await self.request("PATCH", path, body=body, content_type=content_type)

    async def delete(self, path: str, body: Json | None = None) -> Json:
        return await self.request("DELETE", path, body=body)

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[Json]:
        """Events (`type`, `object`) until the server ends it. Raises ApiError; 410 asks for a new list."""
        assert self._session is not None
        asked = {
            **params,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        # A stalled connection is given up: the server would have ended the watch by then.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_WATCH_SECONDS + 30)
        try:
            async with self._session.get(self._server + path, params=asked, timeout=timeout) as response:
                if response.status >= 400:
                    raise _refusal(response.status, await response.read())
                pending = bytearray()
                async for chunk in response.content.iter_any():
                    pending += chunk
                    if len(pending) > _MAX_EVENT_BYTES:
                        raise ApiError(
                            0, "TooLarge", f"a watch event of {path} is over {_MAX_EVENT_BYTES} bytes"
                        )
                    *lines, rest = bytes(pending).split(b"\n")
                    pending = bytearray(rest)
                    for line in lines:
                        event: Json = json.loads(line)
                        if event["type"] == "ERROR":
                            status = event["object"]
                            raise ApiError(
                                int(status.get("code", 0)),
                                status.get("reason", ""),
                                status.get("message", ""),
                            )
                        yield event
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiError(0, "Unreachable", f"watch of {path}: {error!r}") from error


def _named(entries: list[Json], name: str) -> Json:
    return next(entry for entry in entries if entry["name"] == name)


def _material(entry: Json, key: str) -> bytes:
    if f"{key}-data" in entry:
        return base64.b64decode(entry[f"{key}-data"])
    return Path(entry[key]).read_bytes()


def _refusal(status: int, answer: bytes) -> ApiError:
    try:
        told = json.loads(answer)
        return ApiError(status, told.get("reason", ""), told.get("message", ""))
    except (ValueError, AttributeError):
        return ApiError(status, "", answer[:500].decode(errors="replace"))
