"""64 prompts x n = 8 of one text: it is encoded once, sent once, and hashed once."""

import json
from unittest.mock import Mock

import pytest

from warmfleet_contracts.openai import decode_completion_request
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_contracts.prompts.segment_memory import SegmentMemory
from warmfleet_testing.engine.engine_ready import READY
from warmfleet_testing.engine.tiny_tokenizer import tiny_prompt_assets
from warmfleet_worker.engine.messages import encode_message, unpacked_tokens
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.server.engine_client import SequenceRequest, add_messages
from warmfleet_worker.server.requests import DispatchHeaders, PromptReader

TEXT = "the cat sat on the mat. " * 200


@pytest.fixture
def encoder():
    encoder = PromptEncoder.from_assets(tiny_prompt_assets())
    encoder.encode_text = Mock(wraps=encoder.encode_text)
    return encoder


async def sequences_of(encoder, prompts, n=8, **fields):
    body = {"model": "m", "prompt": prompts, "n": n, "max_tokens": 5} | fields
    reader = PromptReader(encoder, READY, SegmentMemory())
    return await reader.completion(decode_completion_request(json.dumps(body).encode()), DispatchHeaders())


async def test_equal_prompts_are_encoded_once_and_share_their_tokens(encoder):
    sequences = await sequences_of(encoder, [TEXT] * 64)

    assert len(sequences) == 512
    assert encoder.encode_text.call_count == 1
    assert len({id(sequence.prompt_token_ids) for sequence in sequences}) == 1


async def test_equal_prompts_of_token_ids_share_them(encoder):
    sequences = await sequences_of(encoder, [[5, 6, 7], [5, 6, 8], [5, 6, 7]], n=2)

    ids = [id(sequence.prompt_token_ids) for sequence in sequences]
    assert ids[:2] == ids[4:]
    assert ids[0] != ids[2]


@pytest.mark.parametrize("prompts", [["the cat"] * 3, [[5, 6, 7]] * 3])
async def test_equal_prompts_share_what_is_echoed(encoder, prompts):
    body = {"model": "m", "prompt": prompts, "n": 2, "max_tokens": 5, "echo": True, "logprobs": 0}
    request = decode_completion_request(json.dumps(body).encode())
    reader = PromptReader(encoder, READY, SegmentMemory())
    sequences = await reader.completion(request, DispatchHeaders())

    echoes = await reader.echoes(request, sequences)

    assert len(echoes) == 6
    assert len({id(echo) for echo in echoes}) == 1


def request_of(prompt, seed=0, **fields):
    return SequenceRequest(prompt_token_ids=prompt, sampling=SamplingParameters(seed=seed), **fields)


def test_512_sequences_of_one_long_prompt_take_at_most_8_bytes_per_token():
    prompt = list(range(131_072))
    numbered = [(number, request_of(prompt, seed=2**64 - 1 - number)) for number in range(512)]

    messages = add_messages(numbered, use_prefix_cache=True)

    assert sum(len(encode_message(message)) for message in messages) <= 8 * len(prompt)
    assert [(new.sequence_id, new.seed) for message in messages for new in message.sequences] == [
        (number, request.sampling.seed) for number, request in numbered
    ]
    assert list(unpacked_tokens(messages[0].prompt)) == prompt


async def test_interleaved_prompts_make_one_message_each(encoder):
    sequences = await sequences_of(encoder, [TEXT, "the", TEXT, "the", "mat"])

    messages = add_messages(enumerate(sequences), use_prefix_cache=False)

    assert [len(message.sequences) for message in messages] == [16, 16, 8]
    for message in messages:
        for new in message.sequences:
            sequence = sequences[new.sequence_id]
            assert list(unpacked_tokens(message.prompt)) == sequence.prompt_token_ids
            assert (new.seed, message.use_prefix_cache) == (sequence.sampling.seed, False)


def test_requests_that_differ_in_more_than_the_seed_get_messages_of_their_own():
    prompt = [1, 2, 3]
    longer = SequenceRequest(prompt_token_ids=prompt, sampling=SamplingParameters(max_output_tokens=99))
    requests = [request_of(prompt), request_of(prompt, salt=b"other"), longer, request_of([1, 2, 3])]

    assert len(add_messages(enumerate(requests), use_prefix_cache=True)) == 4
