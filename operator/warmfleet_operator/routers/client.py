"""Asks routers as the operator, over kept connections, and reads no answer further than its bound."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import httpx

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.errors import WarmfleetError
from warmfleet_operator.keys import KeySecrets
from warmfleet_runtime.answers import IDENTITY, read_content

KEPT_SECONDS: Final = 60.0
"""A connection without a request is kept for so long; routers keep it for longer."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RouterRequest(Generic[T]):
    """What a router is asked for, and what its answer may take."""

    path: str
    decode: Callable[[bytes], T]
    """Raises a ValueError, a WarmfleetError or one of `UNDECODABLE` for a body that is no answer."""
    most_bytes: int
    within_seconds: float


@dataclass(frozen=True, slots=True)
class RouterAnswers(Generic[T]):
    """The answers of the routers that gave one."""

    by_router: Mapping[str, tuple[float, T]]
    """When it was received, on the monotonic clock, and its content."""
    problem: str
    """Of a router that gave none; empty if all did."""


class RouterClient:
    """One HTTP client for all routers.

    answers = await client.ask({uid: ip}, RouterRequest(...))
    await client.close()
    """

    def __init__(self, *, key_secrets: KeySecrets, router_port: int) -> None:
        self._key_secrets = key_secrets
        self._port = router_port
        # Plain HTTP inside the cluster, so there is no certificate to verify.
        self._client = httpx.AsyncClient(
            limits=httpx.Limits(keepalive_expiry=KEPT_SECONDS),
            trust_env=False,
            verify=False,  # noqa: S501 - as above
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def ask(
        self,
        addresses: Mapping[str, str],
        request: RouterRequest[T],
        bodies: Mapping[str, bytes] | None = None,
    ) -> RouterAnswers[T]:
        """Ask the routers at these addresses, all at once; with `bodies`, by router, each is posted its own.

        Raises:
            WarmfleetError: there is no token to ask with.
        """
        token = await self._key_secrets.ensure_operator_token()
        sent: Mapping[str, bytes] = bodies or {}
        asked = [self._ask_one(ip, token, request, sent.get(uid)) for uid, ip in addresses.items()]
        answers = dict(zip(addresses, await asyncio.gather(*asked), strict=True))
        problems = [answer for answer in answers.values() if isinstance(answer, str)]
        return RouterAnswers(
            {uid: answer for uid, answer in answers.items() if not isinstance(answer, str)},
            next(iter(problems), ""),
        )

    async def _ask_one(
        self, ip: str, token: str, request: RouterRequest[T], sent: bytes | None
    ) -> tuple[float, T] | str:
        """When the answer was received and its content, or why there is none."""
        try:
            async with asyncio.timeout(request.within_seconds):
                body = await self._body(ip, token, request, sent)
            return time.monotonic(), request.decode(body)
        except (httpx.HTTPError, TimeoutError, ValueError, WarmfleetError, *UNDECODABLE) as error:
            return f"router at {ip}: {str(error) or type(error).__name__}"[:256]

    async def _body(self, ip: str, token: str, request: RouterRequest[T], sent: bytes | None) -> bytes:
        host = f"[{ip}]" if ":" in ip else ip
        url = f"http://{host}:{self._port}{request.path}"
        headers = {"authorization": f"Bearer {token}", **IDENTITY}
        method = "GET" if sent is None else "POST"
        async with self._client.stream(
            method, url, headers=headers, content=sent, timeout=request.within_seconds
        ) as response:
            if response.status_code != 200:
                raise ValueError(f"answers {response.status_code}")
            return await read_content(response.headers, response.aiter_bytes(), request.most_bytes)
