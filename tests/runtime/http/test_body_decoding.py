"""Where a body is decoded, and what of it: the same for any size."""

import threading

import pytest

from warmfleet_contracts.openai import RequestError
from warmfleet_runtime.http.body import INLINE_BODY_BYTES, decode_body


@pytest.mark.parametrize("surplus", [0, 1])
async def test_only_a_large_body_is_decoded_beside_the_event_loop(surplus):
    body = b"x" * (INLINE_BODY_BYTES + surplus)

    size, thread = await decode_body(body, lambda content: (len(content), threading.current_thread()))

    assert size == len(body)
    assert (thread is threading.main_thread()) == (surplus == 0)


@pytest.mark.parametrize("size", [1, INLINE_BODY_BYTES + 1])
async def test_a_refusal_of_the_body_reaches_the_caller(size):
    def refuse(content):
        raise RequestError(f"{len(content)} bytes of nonsense")

    with pytest.raises(RequestError, match="nonsense"):
        await decode_body(b"x" * size, refuse)
