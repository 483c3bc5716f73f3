"""LiteLLM through its three providers for servers like ours, its router included."""

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any

import litellm
from suite import Suite, raised, target

SUITE = Suite()
CHAT_PROVIDERS = ("openai", "hosted_vllm")
QUESTION = "Say something."
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


@dataclass(frozen=True)
class LiteLlm:
    """Where the server is."""

    base_url: str
    model: str
    key: str
    other_key: str
    """May not call the model."""

    def fields(self, provider: str, text: str, **more: Any) -> dict[str, Any]:
        """Arguments of a greedy, short chat completion."""
        defaults = {
            "model": f"{provider}/{self.model}",
            "api_base": self.base_url,
            "api_key": self.key,
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "max_tokens": 8,
            "num_retries": 0,
            "max_retries": 0,
            "timeout": 30,
        }
        return defaults | more

    def chat(self, provider: str = "openai", text: str = QUESTION, **more: Any) -> Any:
        return litellm.completion(**self.fields(provider, text, **more))

    async def achat(self, provider: str = "openai", text: str = QUESTION, **more: Any) -> Any:
        return await litellm.acompletion(**self.fields(provider, text, **more))

    def complete(self, prompt: Any = "Once upon", **more: Any) -> Any:
        fields = self.fields("text-completion-openai", "", **more)
        del fields["messages"]
        return litellm.text_completion(prompt=prompt, **fields)


def text_of(chunks: list[Any]) -> str:
    """Text of the first choice of a stream."""
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@SUITE.scenario(requests=2)
async def completion_has_text_reason_and_usage(lite: LiteLlm) -> None:
    for provider in CHAT_PROVIDERS:
        answer = lite.chat(provider)
        assert answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 8
        assert answer.usage.prompt_tokens_details.cached_tokens >= 0
        assert answer.id.startswith("chatcmpl-")


@SUITE.scenario(requests=4)
async def acompletion_answers_the_same(lite: LiteLlm) -> None:
    for provider in CHAT_PROVIDERS:
        answer = await lite.achat(provider)
        assert answer.choices[0].message.content == lite.chat(provider).choices[0].message.content


@SUITE.scenario(requests=4)
async def a_stream_has_the_text_of_the_plain_answer(lite: LiteLlm) -> None:
    for provider in CHAT_PROVIDERS:
        chunks = list(lite.chat(provider, stream=True))
        assert text_of(chunks) == lite.chat(provider).choices[0].message.content
        assert chunks[-1].choices[0].finish_reason == "length"


@SUITE.scenario(requests=4)
async def an_async_stream_has_the_text_of_the_plain_answer(lite: LiteLlm) -> None:
    for provider in CHAT_PROVIDERS:
        chunks = [chunk async for chunk in await lite.achat(provider, stream=True)]
        assert text_of(chunks) == lite.chat(provider).choices[0].message.content


@SUITE.scenario(requests=2)
async def a_stream_ends_with_the_servers_usage(lite: LiteLlm) -> None:
    for provider in CHAT_PROVIDERS:
        chunks = list(lite.chat(provider, stream=True, stream_options={"include_usage": True}))
        assert chunks[-1].usage.completion_tokens == 8
        assert chunks[-1].usage.prompt_tokens > 8


@SUITE.scenario(requests=1)
async def chunks_are_built_into_an_answer(lite: LiteLlm) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    chunks = list(lite.chat(messages=messages, stream=True, stream_options={"include_usage": True}))
    built = litellm.stream_chunk_builder(chunks, messages=messages)
    assert built.choices[0].message.content == text_of(chunks)
    assert built.usage.completion_tokens == 8


@SUITE.scenario(requests=1)
async def every_role_is_read(lite: LiteLlm) -> None:
    answer = lite.chat(
        messages=[
            {"role": "system", "content": "You are terse."},
            {"role": "developer", "content": "Answer in lower case."},
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
            {"role": "assistant", "content": "hello"},
            {"role": "tool", "tool_call_id": "call_1", "content": "42"},
            {"role": "user", "content": "And now?"},
        ]
    )
    assert answer.usage.prompt_tokens > 60


@SUITE.scenario(requests=2)
async def sampling_fields_are_taken(lite: LiteLlm) -> None:
    for provider in CHAT_PROVIDERS:
        answer = lite.chat(
            provider,
            temperature=1,
            top_p=0.9,
            presence_penalty=0.1,
            frequency_penalty=0.1,
            logit_bias={"30": 5},
            seed=3,
            user="ann",
        )
        assert answer.usage.completion_tokens > 0


@SUITE.scenario(requests=2)
async def fields_of_the_server_go_through(lite: LiteLlm) -> None:
    for provider in CHAT_PROVIDERS:
        extra = {"top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1, "ignore_eos": True, "cache_salt": "a"}
        assert lite.chat(provider, extra_body=extra).usage.completion_tokens == 8


@SUITE.scenario(requests=2)
async def fields_that_litellm_does_not_know_go_through(lite: LiteLlm) -> None:
    for provider in CHAT_PROVIDERS:
        assert lite.chat(provider, temperature=2, top_k=1).choices[0].message.content


@SUITE.scenario(requests=3)
async def log_probabilities_are_served(lite: LiteLlm) -> None:
    for provider in CHAT_PROVIDERS:
        choice = lite.chat(provider, logprobs=True, top_logprobs=2).choices[0]
        assert len(choice.logprobs.content) == 8
        assert len(choice.logprobs.content[0].top_logprobs) == 2
    choice = lite.complete(logprobs=2).choices[0]
    assert len(choice.logprobs.tokens) == 8


@SUITE.scenario(requests=3)
async def stop_ends_the_answer(lite: LiteLlm) -> None:
    text = lite.chat().choices[0].message.content
    for stop in (text[2:4], [text[2:4], "never generated"]):
        choice = lite.chat(stop=stop).choices[0]
        assert choice.finish_reason == "stop"
        assert choice.message.content == text[: text.index(text[2:4])]


@SUITE.scenario(requests=2)
async def n_gives_so_many_choices(lite: LiteLlm) -> None:
    for provider in CHAT_PROVIDERS:
        answer = lite.chat(provider, n=2, temperature=1)
        assert [choice.index for choice in answer.choices] == [0, 1]


@SUITE.scenario(requests=3)
async def a_seed_repeats_the_answer(lite: LiteLlm) -> None:
    texts = [lite.chat(temperature=1.5, seed=seed).choices[0].message.content for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]


@SUITE.scenario(requests=2)
async def both_names_of_the_output_limit_count(lite: LiteLlm) -> None:
    assert lite.chat(max_tokens=3).usage.completion_tokens == 3
    fields = lite.fields("openai", QUESTION, max_completion_tokens=3)
    del fields["max_tokens"]
    assert litellm.completion(**fields).usage.completion_tokens == 3


@SUITE.scenario(requests=1)
async def batch_completion_answers_in_order(lite: LiteLlm) -> None:
    fields = lite.fields("openai", QUESTION)
    answers = litellm.batch_completion(**(fields | {"messages": [fields["messages"]]}))
    assert [answer.usage.completion_tokens for answer in answers] == [8]


@SUITE.scenario(requests=4)
async def answers_asked_for_at_once_are_each_the_right_one(lite: LiteLlm) -> None:
    extra = {"ignore_eos": True}
    limits = range(1, 5)
    answers = await asyncio.gather(*(lite.achat(max_tokens=limit, extra_body=extra) for limit in limits))
    assert [answer.usage.completion_tokens for answer in answers] == list(limits)


@SUITE.scenario(requests=2)
async def the_second_turn_reads_the_cache(lite: LiteLlm) -> None:
    messages = [{"role": "user", "content": uuid.uuid4().hex + " a quick brown fox" * 10}]
    first = lite.chat(messages=messages)
    turn = {"role": "assistant", "content": first.choices[0].message.content}
    second = lite.chat(messages=[*messages, turn, {"role": "user", "content": "And then?"}])
    assert first.usage.prompt_tokens_details.cached_tokens < 32
    assert second.usage.prompt_tokens_details.cached_tokens >= 192


@SUITE.scenario(requests=2)
async def tools_are_a_bad_request(lite: LiteLlm) -> None:
    for provider in CHAT_PROVIDERS:
        error = await raised(
            litellm.BadRequestError, lambda provider=provider: lite.chat(provider, tools=[TOOL])
        )
        assert error.status_code == 400
        assert "tools is not supported" in str(error)


@SUITE.scenario(requests=4)
async def a_prompt_beyond_the_context_is_known_as_such(lite: LiteLlm) -> None:
    for provider in CHAT_PROVIDERS:
        for stream in (False, True):
            kind = litellm.ContextWindowExceededError
            fields = lite.fields(provider, "far too long " * 100, stream=stream)
            await raised(kind, lambda fields=fields: litellm.completion(**fields))


@SUITE.scenario(requests=3)
async def an_unknown_model_is_not_found(lite: LiteLlm) -> None:
    for provider in CHAT_PROVIDERS:
        call = lambda provider=provider: lite.chat(provider, model=f"{provider}/no-such-model")
        await raised(litellm.NotFoundError, call)
    await raised(litellm.NotFoundError, lambda: lite.achat(model="openai/no-such-model"))


@SUITE.scenario(requests=4)
async def a_wrong_key_is_known_as_such_and_a_model_not_allowed_is_named(lite: LiteLlm) -> None:
    for provider in CHAT_PROVIDERS:
        fields = lite.fields(provider, QUESTION, api_key="wrong")
        await raised(litellm.AuthenticationError, lambda fields=fields: litellm.completion(**fields))
        # LiteLLM has no case for 403.
        fields = lite.fields(provider, QUESTION, api_key=lite.other_key)
        error = await raised(litellm.BadRequestError, lambda fields=fields: litellm.completion(**fields))
        assert "this key may not call" in str(error)


@SUITE.scenario(requests=1)
async def a_wrong_value_is_a_bad_request(lite: LiteLlm) -> None:
    error = await raised(litellm.BadRequestError, lambda: lite.chat(temperature=9))
    assert "temperature" in str(error)


@SUITE.scenario(requests=1)
async def embeddings_are_refused_with_what_is_served(lite: LiteLlm) -> None:
    # LiteLLM knows a 404 by the words model_not_found alone, and calls this one a bad request.
    fields = {
        "model": f"openai/{lite.model}",
        "api_base": lite.base_url,
        "api_key": lite.key,
        "max_retries": 0,
    }
    error = await raised(litellm.BadRequestError, lambda: litellm.embedding(input=["text"], **fields))
    assert "/v1/chat/completions" in str(error)


@SUITE.scenario(requests=1)
async def a_timeout_is_a_timeout(lite: LiteLlm) -> None:
    extra = {"ignore_eos": True}
    await raised(litellm.Timeout, lambda: lite.chat(timeout=0.1, max_tokens=900, extra_body=extra))


@SUITE.scenario(requests=1)
async def a_stream_can_be_left_early(lite: LiteLlm) -> None:
    stream = await lite.achat(stream=True, max_tokens=400, extra_body={"ignore_eos": True})
    async for _ in stream:
        break
    await stream.aclose()


@SUITE.scenario(requests=2)
async def text_completion_takes_a_text_and_a_list(lite: LiteLlm) -> None:
    assert lite.complete().choices[0].text
    answer = lite.complete(["Once upon"] * 2)
    assert len(answer.choices) == 2
    assert answer.usage.completion_tokens == 16


@SUITE.scenario(requests=2)
async def text_completion_takes_token_ids(lite: LiteLlm) -> None:
    assert lite.complete([[40, 41, 42]]).usage.prompt_tokens == 3
    assert lite.complete([40, 41, 42]).usage.prompt_tokens == 3


@SUITE.scenario(requests=2)
async def a_text_completion_is_streamed(lite: LiteLlm) -> None:
    streamed = "".join(chunk.choices[0].text or "" for chunk in lite.complete(stream=True))
    assert streamed == lite.complete().choices[0].text


@SUITE.scenario(requests=1)
async def a_text_completion_is_awaited(lite: LiteLlm) -> None:
    fields = lite.fields("text-completion-openai", "")
    del fields["messages"]
    answer = await litellm.atext_completion(prompt="Once upon", **fields)
    assert answer.choices[0].text


@SUITE.scenario(requests=3)
async def the_router_object_balances_and_streams(lite: LiteLlm) -> None:
    fields = lite.fields("openai", "")
    deployments = [
        {
            "model_name": "fleet",
            "litellm_params": {name: fields[name] for name in ("api_base", "api_key")}
            | {"model": f"{provider}/{lite.model}", "max_retries": 0},
        }
        for provider in CHAT_PROVIDERS
    ]
    router = litellm.Router(model_list=deployments, num_retries=0)
    ask = {"model": "fleet", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 8}
    assert router.completion(**ask).usage.completion_tokens > 0
    assert (await router.acompletion(**ask)).usage.completion_tokens > 0
    assert [chunk async for chunk in await router.acompletion(**ask, stream=True)]


@SUITE.scenario(requests=2)
async def a_fallback_answers_for_a_model_that_is_not_served(lite: LiteLlm) -> None:
    common = {name: lite.fields("openai", "")[name] for name in ("api_base", "api_key")} | {"max_retries": 0}
    router = litellm.Router(
        model_list=[
            {"model_name": "gone", "litellm_params": common | {"model": "openai/no-such-model"}},
            {"model_name": "here", "litellm_params": common | {"model": f"openai/{lite.model}"}},
        ],
        fallbacks=[{"gone": ["here"]}],
        num_retries=0,
    )
    answer = await router.acompletion(
        model="gone", messages=[{"role": "user", "content": QUESTION}], max_tokens=2
    )
    assert answer.usage.completion_tokens == 2


if __name__ == "__main__":
    given = target()
    asyncio.run(SUITE.run(LiteLlm(given.base_url, given.model, given.key, given.other_key)))
