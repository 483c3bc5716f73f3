"""One question to the hub: which commit is this branch or tag?

It is sent to the release's endpoint and to no other origin: a user of ModelDeployments chooses repository and
revision, which the resource's definition restricts and the path quotes, and never a host. Redirects, as of a
repository that was renamed, are followed inside that origin alone.
"""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx

from warmfleet_contracts.errors import ModelError, WarmfleetError
from warmfleet_contracts.resources.hub import (
    PUBLIC_HUB,
    commit_in,
    is_temporary,
    pause_seconds,
    refusal,
    revision_path,
)
from warmfleet_operator.desired.commits import HubRevision
from warmfleet_operator.settings import OperatorSettings
from warmfleet_runtime.answers import IDENTITY, AnswerError, read_content

ANSWER_SECONDS: Final = 20.0
"""For everything: connecting, redirects, the whole body."""
MAX_ANSWER_BYTES: Final = 4 * 2**20
"""A repository's file names and its card; the largest public ones take some hundred KiB."""
_MAX_REDIRECTS: Final = 3
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class HubRefusedError(WarmfleetError):
    """The hub shows no commit: no such repository or revision, or no access to it."""

    def __init__(self, text: str, *, wants_token: bool) -> None:
        super().__init__(text)
        self.wants_token = wants_token
        """Whether a token, or another one, might help."""


class HubUnreachableError(WarmfleetError):
    """No answer, or none of a hub; `pause_seconds` is what it asks for."""

    def __init__(self, text: str, pause_seconds: float = 0.0) -> None:
        super().__init__(text)
        self.pause_seconds = pause_seconds


@dataclass(frozen=True, slots=True)
class HubAccess:
    """How the hub is reached."""

    endpoint: str
    proxy: str = ""
    ca_file: Path | None = None
    """Certificates to trust instead of the image's."""

    @classmethod
    def of(cls, settings: OperatorSettings) -> "HubAccess":
        """As the release's fetches reach it."""
        endpoint = (settings.hub_endpoint or PUBLIC_HUB).rstrip("/")
        parts = urlsplit(endpoint)
        proxy = settings.https_proxy if parts.scheme == "https" else settings.http_proxy
        if _reached_directly(parts.netloc, parts.hostname or "", settings.no_proxy):
            proxy = ""
        elif proxy and "://" not in proxy:
            proxy = f"http://{proxy}"  # as clients read HTTPS_PROXY
        return cls(endpoint, proxy, settings.hub_ca_file)

    @property
    def name(self) -> str:
        """The endpoint as users may read it: without a password in it."""
        parts = urlsplit(self.endpoint)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def origin(self) -> tuple[str, str, int | None]:
        return _origin(self.endpoint)


async def ask_commit(access: HubAccess, asked: HubRevision, token: str = "") -> str:
    """The commit that the revision is now.

    Raises:
        HubRefusedError: asking the same again is useless.
        HubUnreachableError: try again later.
    """
    headers = {
        "user-agent": "warmfleet-operator",
        "accept": "application/json",
        # Some KiB of a compressed answer may be GiB: the bound is that of what is received.
        **IDENTITY,
    }
    if token:
        headers["authorization"] = f"Bearer {token}"
    try:
        async with asyncio.timeout(ANSWER_SECONDS), _client(access, headers) as client:
            return commit_in(await _body(client, access, asked, with_token=bool(token)), access.name)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError, ModelError) as error:
        reason = str(error) or f"no answer within {ANSWER_SECONDS:g} s ({type(error).__name__})"
        raise HubUnreachableError(f"{access.name}: {reason}"[:512]) from error


def _client(access: HubAccess, headers: dict[str, str]) -> httpx.AsyncClient:
    try:
        return httpx.AsyncClient(
            headers=headers,
            timeout=ANSWER_SECONDS,
            trust_env=False,
            proxy=access.proxy or None,
            verify=_certificates(access),
        )
    except (ValueError, ImportError) as error:  # a scheme that it does not know, or only with another package
        raise HubUnreachableError(f"the proxy of the hub cannot be used: {error}"[:512]) from error


async def _body(
    client: httpx.AsyncClient, access: HubAccess, asked: HubRevision, *, with_token: bool
) -> bytes:
    url = access.endpoint + revision_path(asked.repository, asked.revision)
    for _ in range(_MAX_REDIRECTS + 1):
        async with client.stream("GET", url) as answer:
            if answer.status_code in _REDIRECTS:
                url = str(answer.url.join(answer.headers.get("location", "")))
                if _origin(url) != access.origin:
                    raise HubUnreachableError(f"{access.name} redirects to another host: not followed")
                continue
            if not answer.is_success:
                raise _error(answer, access, asked, with_token=with_token)
            return await _content(answer, access)
    raise HubUnreachableError(f"{access.name} redirects more than {_MAX_REDIRECTS} times")


async def _content(answer: httpx.Response, access: HubAccess) -> bytes:
    try:
        return await read_content(answer.headers, answer.aiter_raw(), MAX_ANSWER_BYTES)
    except AnswerError as error:
        raise HubUnreachableError(f"{access.name} {error}") from None


def _error(
    answer: httpx.Response, access: HubAccess, asked: HubRevision, *, with_token: bool
) -> WarmfleetError:
    status = answer.status_code
    if is_temporary(status):
        pause = pause_seconds(answer.headers.get("retry-after", ""))
        return HubUnreachableError(f"{access.name} answered {status}", pause)
    text = refusal(
        status,
        answer.headers.get("x-error-code", ""),
        endpoint=access.name,
        repository=asked.repository,
        revision=asked.revision,
        with_token=with_token,
    )
    return HubRefusedError(text, wants_token=status in {401, 403, 404})


def _certificates(access: HubAccess) -> ssl.SSLContext | bool:
    """The CA bundle is a ConfigMap that may not be there: then the image's certificates count."""
    if access.ca_file is None or not access.ca_file.is_file():
        return True
    return ssl.create_default_context(cafile=str(access.ca_file))


def _reached_directly(netloc: str, host: str, no_proxy: str) -> bool:
    """By the variable NO_PROXY: names with their subdomains, with or without a port; `*` is all of them."""
    names = [name.strip().lstrip(".").lower() for name in no_proxy.split(",") if name.strip()]
    return any(name in {"*", host, netloc} or host.endswith(f".{name}") for name in names)


def _origin(url: str) -> tuple[str, str, int | None]:
    """As httpx normalizes it: the host in small letters, no port where it is the scheme's own, no user."""
    parts = httpx.URL(url)
    return parts.scheme, parts.host, parts.port
