"""Which HTTP error a sequence becomes that ends before its answer: whose fault it is decides."""

import asyncio
import json

import pytest
import tokenizers

from warmfleet_contracts.openai import RequestError
from warmfleet_testing.engine.tiny_tokenizer import tiny_tokenizer
from warmfleet_worker.engine.messages import SequenceUpdate
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.metrics import WorkerMetrics
from warmfleet_worker.server.answer_tokens import EchoedPrompt
from warmfleet_worker.server.choices import ChoiceDecoder
from warmfleet_worker.server.detokenizer import Detokenizer
from warmfleet_worker.server.engine_client import SequenceRequest
from warmfleet_worker.server.sequence_handle import MAX_BUFFERED_TOKENS, SequenceHandle

TOKENIZER = tokenizers.Tokenizer.from_str(json.dumps(tiny_tokenizer()))


class NoControl:
    """An engine that nothing is asked of."""

    def abort_sequence(self, sequence_id): ...
    def pause_sequence(self, sequence_id): ...
    def resume_sequence(self, sequence_id): ...


def choice_of(handle: SequenceHandle) -> ChoiceDecoder:
    return ChoiceDecoder(
        0,
        handle,
        Detokenizer(TOKENIZER, (), min_tokens=0),
        SequenceRequest(prompt_token_ids=[1], sampling=SamplingParameters()),
        WorkerMetrics("m"),
        echo=EchoedPrompt(),
        return_token_ids=False,
        lists_all_tokens=False,
    )


@pytest.mark.parametrize(
    ("finish_reason", "cached_tokens", "status", "kind", "code"),
    [
        # Every replica would refuse it: the router passes this on, and no worker is at fault.
        ("refused", None, 400, "invalid_request_error", None),
        # The router asks another one, and no worker is at fault.
        ("busy", None, 429, "rate_limit_error", "overloaded"),
        ("error", None, 503, "server_error", "not_ready"),
        ("error", 0, 500, "server_error", "engine_error"),
    ],
)
async def test_the_status_names_whose_fault_it_is(finish_reason, cached_tokens, status, kind, code):
    handle = SequenceHandle(1, asyncio.Event(), NoControl())
    update = SequenceUpdate(
        sequence_id=1, cached_tokens=cached_tokens, finish_reason=finish_reason, error="why"
    )
    handle.apply(update, "epoch:1")

    with pytest.raises(RequestError, match="why") as raised:
        choice_of(handle).take()

    assert (raised.value.status, raised.value.type, raised.value.code) == (status, kind, code)


async def test_an_answer_that_its_client_does_not_read_is_no_error_of_the_server():
    handle = SequenceHandle(1, asyncio.Event(), NoControl())
    unread = [5] * (MAX_BUFFERED_TOKENS + 1)

    handle.apply(SequenceUpdate(sequence_id=1, cached_tokens=0, token_ids=unread), "epoch:1")

    with pytest.raises(RequestError, match="read too slowly") as raised:
        choice_of(handle).take()
    error = raised.value
    assert (error.status, error.type, error.code) == (408, "invalid_request_error", "slow_reader")
