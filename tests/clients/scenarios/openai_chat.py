"""Chat completions through the OpenAI SDK: plain, streamed, sampled."""

import json
import uuid
from typing import Any

from openai_client import Sdk, chunk_text
from suite import Suite, concurrently, each, entered, listed, settled

SUITE = Suite()

HISTORY = [
    {"role": "system", "content": "You are terse."},
    {"role": "developer", "content": "Answer in lower case."},
    {"role": "user", "name": "ann", "content": "Hello"},
    {"role": "assistant", "content": "hello"},
    {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "now?"}]},
]


@SUITE.scenario(requests=1)
async def models_are_listed(sdk: Sdk) -> None:
    models = [model async for model in each(await settled(sdk.client.models.list()))]
    assert [model.id for model in models] == [sdk.model]
    assert models[0].object == "model"
    assert models[0].created > 0
    assert models[0].owned_by


@SUITE.scenario(requests=1)
async def a_model_is_retrieved(sdk: Sdk) -> None:
    model = await settled(sdk.client.models.retrieve(sdk.model))
    assert (model.id, model.object) == (sdk.model, "model")


@SUITE.scenario(requests=1)
async def a_plain_answer_has_every_field(sdk: Sdk) -> None:
    answer = await sdk.chat()
    (choice,) = answer.choices
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", sdk.model)
    assert (choice.index, choice.finish_reason) == (0, "length")
    assert (choice.message.role, choice.message.refusal) == ("assistant", None)
    assert choice.message.tool_calls is None
    assert choice.logprobs is None
    assert choice.message.content
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0


@SUITE.scenario(requests=1)
async def an_answer_has_no_field_that_the_sdk_does_not_know(sdk: Sdk) -> None:
    answer = await sdk.chat()
    (choice,) = answer.choices
    for part in (answer, choice, choice.message, answer.usage, answer.usage.prompt_tokens_details):
        assert not part.model_extra, (type(part).__name__, part.model_extra)


@SUITE.scenario(requests=2)
async def a_stream_has_the_text_of_the_plain_answer(sdk: Sdk) -> None:
    plain = await sdk.chat()
    chunks = await sdk.chat_chunks()
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-1])
    assert all(chunk.usage is None for chunk in chunks)
    assert chunk_text(chunks) == plain.choices[0].message.content


@SUITE.scenario(requests=1)
async def the_last_chunk_has_the_usage(sdk: Sdk) -> None:
    *chunks, last = await sdk.chat_chunks(stream_options={"include_usage": True})
    assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage.completion_tokens == 8
    assert last.usage.prompt_tokens_details.cached_tokens >= 0


@SUITE.scenario(requests=2)
async def a_stream_can_be_left_early(sdk: Sdk) -> None:
    stream = await sdk.chat(stream=True, max_tokens=400, extra_body={"ignore_eos": True})
    async with entered(stream) as chunks:
        async for _ in each(chunks):
            break
    assert (await sdk.chat()).choices[0].message.content


@SUITE.scenario(requests=1)
async def a_stream_can_be_closed_before_it_is_read(sdk: Sdk) -> None:
    stream = await sdk.chat(stream=True, max_tokens=400, extra_body={"ignore_eos": True})
    await settled(stream.close())


@SUITE.scenario(requests=1)
async def the_raw_response_has_the_request_id(sdk: Sdk) -> None:
    create = sdk.client.chat.completions.with_raw_response.create
    raw = await settled(create(model=sdk.model, messages=HISTORY[:1], max_tokens=4))
    answer = raw.parse()
    assert raw.status_code == 200
    assert raw.headers["x-request-id"] == answer._request_id
    assert answer.id == f"chatcmpl-{answer._request_id}"


@SUITE.scenario(requests=1)
async def a_request_id_of_the_callers_own_comes_back(sdk: Sdk) -> None:
    own = uuid.uuid4().hex
    answer = await sdk.chat(extra_headers={"x-request-id": own})
    assert answer._request_id == own


@SUITE.scenario(requests=1)
async def the_streaming_response_gives_raw_lines(sdk: Sdk) -> None:
    create = sdk.client.chat.completions.with_streaming_response.create
    fields = {"messages": HISTORY[:1], "max_tokens": 4, "stream": True}
    async with entered(create(model=sdk.model, **fields)) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in each(response.iter_lines())]
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events[-1] == "[DONE]"
    assert all(json.loads(event)["object"] == "chat.completion.chunk" for event in events[:-1])


@SUITE.scenario(requests=2)
async def the_stream_helper_collects_the_plain_answer(sdk: Sdk) -> None:
    # The helper raises when the output limit ends an answer, so a stop string has to.
    text = (await sdk.chat()).choices[0].message.content
    fields = {"temperature": 0, "stop": text[4:6], "stream_options": {"include_usage": True}}
    messages = [{"role": "user", "content": "Say something."}]
    helper = sdk.client.chat.completions.stream(model=sdk.model, messages=messages, **fields)
    async with entered(helper) as stream:
        kinds = {event.type async for event in each(stream)}
        collected = await settled(stream.get_final_completion())
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert collected.choices[0].message.content == text[: text.index(text[4:6])]
    assert collected.choices[0].finish_reason == "stop"
    assert collected.usage.completion_tokens > 0


@SUITE.scenario(requests=2)
async def parse_without_a_format_is_a_plain_answer(sdk: Sdk) -> None:
    parse = sdk.client.chat.completions.parse
    text = (await sdk.chat()).choices[0].message.content
    messages = [{"role": "user", "content": "Say something."}]
    answer = await settled(parse(model=sdk.model, messages=messages, temperature=0, stop=text[4:6]))
    assert answer.choices[0].message.parsed is None
    assert answer.choices[0].message.content is not None


@SUITE.scenario(requests=2)
async def every_role_and_text_parts_are_read(sdk: Sdk) -> None:
    whole = await sdk.chat(messages=HISTORY)
    shorter = await sdk.chat(messages=HISTORY[:-1])
    assert whole.usage.prompt_tokens > shorter.usage.prompt_tokens


@SUITE.scenario(requests=2)
async def one_text_part_is_the_text(sdk: Sdk) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "Say something."}]}]
    assert (await sdk.chat(messages=parts)).choices[0].message == (await sdk.chat()).choices[0].message


@SUITE.scenario(requests=2)
async def n_gives_so_many_choices_plain_and_streamed(sdk: Sdk) -> None:
    fields: dict[str, Any] = {"n": 2, "temperature": 1, "seed": 7}
    answer = await sdk.chat(**fields)
    chunks = await sdk.chat_chunks(**fields)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.completion_tokens == 16
    texts = [choice.message.content for choice in answer.choices]
    assert texts == [chunk_text(chunks, index) for index in range(2)]
    assert texts[0] != texts[1]


@SUITE.scenario(requests=3)
async def stop_strings_end_the_answer(sdk: Sdk) -> None:
    text = (await sdk.chat()).choices[0].message.content
    stop = text[2:4]
    for given in (stop, [stop, "never generated"]):
        (choice,) = (await sdk.chat(stop=given)).choices
        assert choice.finish_reason == "stop"
        assert choice.message.content == text[: text.index(stop)]


@SUITE.scenario(requests=2)
async def both_names_of_the_output_limit_count(sdk: Sdk) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        fields = {"max_tokens": None, name: 3}
        answer = await sdk.chat(**fields)
        assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (3, "length")


@SUITE.scenario(requests=3)
async def a_seed_repeats_the_answer(sdk: Sdk) -> None:
    texts = [
        (await sdk.chat(temperature=1.5, seed=seed, max_tokens=16)).choices[0].message.content
        for seed in (11, 11, 12)
    ]
    assert texts[0] == texts[1] != texts[2]


@SUITE.scenario(requests=2)
async def temperature_zero_repeats_the_answer(sdk: Sdk) -> None:
    texts = {(await sdk.chat(max_tokens=16)).choices[0].message.content for _ in range(2)}
    assert len(texts) == 1


@SUITE.scenario(requests=2)
async def a_bias_decides_the_answer(sdk: Sdk) -> None:
    (token_id,) = await sdk.token_ids("x")
    answer = await sdk.chat(logit_bias={str(token_id): 100}, temperature=1)
    assert answer.choices[0].message.content == "x" * 8


@SUITE.scenario(requests=3)
async def a_character_of_four_tokens_is_streamed_whole(sdk: Sdk) -> None:
    """Each byte of the emoji is a token; falling biases and a penalty on repeats put them in order."""
    ids = await sdk.token_ids("🙂")
    biases = {str(token_id): 100 - 20 * place for place, token_id in enumerate(ids)}
    fields = {"logit_bias": biases, "max_tokens": len(ids), "extra_body": {"repetition_penalty": 100}}
    chunks = await sdk.chat_chunks("Smile.", **fields)
    assert len(ids) == 4
    assert chunk_text(chunks) == "🙂"
    assert (await sdk.chat("Smile.", **fields)).choices[0].message.content == "🙂"


@SUITE.scenario(requests=2)
async def penalties_change_the_answer(sdk: Sdk) -> None:
    first, second = await sdk.token_ids("xy")
    biases = {str(first): 100, str(second): 99}
    answer = await sdk.chat(logit_bias=biases, presence_penalty=2, frequency_penalty=2, max_tokens=16)
    assert set(answer.choices[0].message.content) == {"x", "y"}


@SUITE.scenario(requests=3)
async def log_probabilities_come_plain_and_streamed(sdk: Sdk) -> None:
    (token_id,) = await sdk.token_ids("x")
    fields = {"logprobs": True, "top_logprobs": 3, "logit_bias": {str(token_id): 3}}
    answer = await sdk.chat(**fields)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob <= 0
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[-1].logprob
        assert not entry.model_extra
    text = bytes(byte for entry in entries for byte in entry.bytes)
    assert text.decode(errors="replace").startswith(answer.choices[0].message.content)
    chunks = await sdk.chat_chunks(**fields)
    pieces = [chunk.choices[0].logprobs for chunk in chunks]
    streamed = [entry for piece in pieces if piece for entry in piece.content]
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]


@SUITE.scenario(requests=1)
async def sampling_fields_beyond_openais_are_taken_from_the_extra_body(sdk: Sdk) -> None:
    extra = {
        "top_k": 5,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "min_tokens": 4,
        "ignore_eos": True,
        "stop_token_ids": [2],
        "return_token_ids": True,
        "cache_salt": "mine",
    }
    answer = await sdk.chat(temperature=1, top_p=0.9, extra_body=extra)
    assert len(answer.choices[0].token_ids) == answer.usage.completion_tokens


@SUITE.scenario(requests=1)
async def top_k_of_one_is_greedy(sdk: Sdk) -> None:
    extra = {"top_k": 1}
    chunks = await sdk.chat_chunks(temperature=2, extra_body=extra, stream_options={"include_usage": False})
    assert chunk_text(chunks)


@SUITE.scenario(requests=1)
async def fields_without_effect_are_accepted(sdk: Sdk) -> None:
    await sdk.chat(
        user="ann",
        metadata={"trace": "1"},
        store=False,
        service_tier="auto",
        parallel_tool_calls=True,
        prompt_cache_key="key",
        safety_identifier="id",
        tools=[],
        tool_choice="auto",
        response_format={"type": "text"},
        modalities=["text"],
        logprobs=False,
        reasoning_effort="low",
    )


@SUITE.scenario(requests=1)
async def unknown_fields_are_ignored(sdk: Sdk) -> None:
    await sdk.chat(extra_body={"no_such_field": {"deep": [1, 2]}}, extra_query={"api-version": "1"})


@SUITE.scenario(requests=2)
async def characters_of_all_planes_are_read(sdk: Sdk) -> None:
    text = "grüß dich 🙂 漢字 👩‍👩‍👧 \u202eabc \x00"
    answer = await sdk.chat(text, max_tokens=1)
    empty = await sdk.chat("", max_tokens=1)
    read_tokens = answer.usage.prompt_tokens - empty.usage.prompt_tokens
    assert read_tokens == len(text.encode()), "the model's tokenizer has one token per byte here"


@SUITE.scenario(requests=1)
async def a_cap_beyond_the_context_is_clamped(sdk: Sdk) -> None:
    answer = await sdk.chat(sdk.new_text(950), max_tokens=65_535, extra_body={"ignore_eos": True})
    assert answer.usage.prompt_tokens > 950
    assert answer.usage.total_tokens == 1024
    assert answer.choices[0].finish_reason == "length"


@SUITE.scenario(requests=2)
async def the_second_turn_finds_the_first_cached(sdk: Sdk) -> None:
    messages = [{"role": "user", "content": sdk.new_text()}]
    first = await sdk.chat(messages=messages)
    messages += [first.choices[0].message, {"role": "user", "content": "And then?"}]
    second = await sdk.chat(messages=messages)
    assert first.usage.prompt_tokens_details.cached_tokens < 32
    assert second.usage.prompt_tokens_details.cached_tokens >= 192


@SUITE.scenario(requests=3)
async def a_cache_salt_keeps_prompts_apart(sdk: Sdk) -> None:
    text = sdk.new_text()
    first, other, again = [
        (await sdk.chat(text, extra_body={"cache_salt": salt})).usage.prompt_tokens_details.cached_tokens
        for salt in ("a" + text[:32], "b" + text[:32], "a" + text[:32])
    ]
    assert first == other == 0
    assert again >= 192


@SUITE.scenario(requests=8)
async def answers_asked_for_at_once_are_each_the_right_one(sdk: Sdk) -> None:
    def ask(limit: int) -> Any:
        fields = {"messages": HISTORY, "max_tokens": limit, "extra_body": {"ignore_eos": True}}
        return sdk.client.chat.completions.create(model=sdk.model, **fields)

    answers = await concurrently([lambda limit=limit: ask(limit) for limit in range(1, 9)])
    assert [answer.usage.completion_tokens for answer in answers] == list(range(1, 9))


@SUITE.scenario(requests=1)
async def options_of_a_copied_client_count(sdk: Sdk) -> None:
    copy = sdk.client.with_options(timeout=20, default_headers={"x-own": "1"}, max_retries=0)
    stream = await settled(
        copy.chat.completions.create(model=sdk.model, messages=HISTORY, stream=True, max_tokens=2)
    )
    assert await listed(stream)
