"""`/internal/handover`: the operator names workers that are about to go."""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from warmfleet_contracts.cache.handover import (
    MAX_HANDOVER_BYTES,
    HandoverAnswer,
    HandoverRequest,
    decode_handover,
)
from warmfleet_contracts.errors import ContractError
from warmfleet_contracts.openai import RequestError
from warmfleet_runtime.http.body import read_body
from warmfleet_runtime.http.disconnect import cancel_on_disconnect

MAX_HANDOVERS: Final = 8
"""Open at once; an operator has one open per ModelDeployment that shrinks."""


class HandoverEndpoint:
    """Answers when what the victims hold is moved, or their time is over."""

    def __init__(self, hand_over: Callable[[HandoverRequest], Awaitable[HandoverAnswer]]) -> None:
        self._hand_over = hand_over
        self._open = 0

    async def hand_over(self, request: Request) -> Response:
        """One `HandoverRequest`; 400 for what is none, 413 for a larger body, 429 beyond `MAX_HANDOVERS`."""
        try:
            decoded = decode_handover(await read_body(request, limit_bytes=MAX_HANDOVER_BYTES))
        except ContractError as error:
            raise RequestError(str(error)) from error
        if self._open >= MAX_HANDOVERS:
            raise RequestError(
                f"{MAX_HANDOVERS} handovers are open, which is the limit",
                status=429,
                code="overloaded",
                retry_after_seconds=1,
            )
        return _HandoverResponse(self, decoded)

    async def answer(self, request: HandoverRequest) -> HandoverAnswer:
        """What came of a handover, which counts as open until then."""
        self._open += 1
        try:
            return await self._hand_over(request)
        finally:
            self._open -= 1


class _HandoverResponse(Response):
    """Hands over; gives up when the operator disconnects."""

    def __init__(self, endpoint: HandoverEndpoint, request: HandoverRequest) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = None
        async with cancel_on_disconnect(receive):
            answer = await self._endpoint.answer(self._request)
        if answer is not None:
            await JSONResponse(msgspec.to_builtins(answer))(scope, receive, send)
