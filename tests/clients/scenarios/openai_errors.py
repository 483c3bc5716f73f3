"""Refusals as the OpenAI SDK's exception classes."""

from typing import Any

import openai
from openai_client import Sdk
from suite import Suite, raised, settled

SUITE = Suite()

TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "day", "schema": {"type": "object"}}}


async def refused(sdk: Sdk, param: str, code: str | None = None, **fields: Any) -> Any:
    """The `BadRequestError` of a chat request with these fields."""
    error = await raised(openai.BadRequestError, lambda: sdk.chat(**fields))
    assert (error.status_code, error.param, error.code) == (400, param, code), error
    assert error.type == "invalid_request_error"
    assert error.request_id == error.response.headers["x-request-id"]
    assert set(error.body) == {"message", "type", "param", "code"}
    return error


@SUITE.scenario(requests=1)
async def tools_are_a_bad_request_that_names_them(sdk: Sdk) -> None:
    error = await refused(sdk, "tools", "unsupported_parameter", tools=[TOOL])
    assert "tools is not supported" in error.message


@SUITE.scenario(requests=1)
async def a_json_schema_is_a_bad_request(sdk: Sdk) -> None:
    await refused(sdk, "response_format", "unsupported_parameter", response_format=SCHEMA)


@SUITE.scenario(requests=1)
async def an_image_is_a_bad_request(sdk: Sdk) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    await refused(sdk, "messages", "unsupported_parameter", messages=[{"role": "user", "content": [part]}])


@SUITE.scenario(requests=1)
async def a_prompt_beyond_the_context_is_refused_with_the_message_that_clients_match(sdk: Sdk) -> None:
    text = "far too long " * 100
    error = await refused(
        sdk, "messages", "context_length_exceeded", messages=[{"role": "user", "content": text}]
    )
    assert "maximum context length is 1024 tokens" in error.message


@SUITE.scenario(requests=1)
async def a_refused_stream_raises_before_its_first_chunk(sdk: Sdk) -> None:
    await refused(
        sdk,
        "messages",
        "context_length_exceeded",
        messages=[{"role": "user", "content": "far too long " * 100}],
        stream=True,
    )


@SUITE.scenario(requests=1)
async def no_messages_are_a_bad_request(sdk: Sdk) -> None:
    await refused(sdk, "messages", messages=[])


@SUITE.scenario(requests=4)
async def wrong_values_are_named(sdk: Sdk) -> None:
    for name, value in (("temperature", "hot"), ("top_p", 7), ("n", 99), ("presence_penalty", 3)):
        error = await refused(sdk, name, **{name: value})
        assert name in error.message


@SUITE.scenario(requests=1)
async def an_unknown_model_is_not_found(sdk: Sdk) -> None:
    error = await raised(openai.NotFoundError, lambda: sdk.client.models.retrieve("no/such-model"))
    assert (error.code, error.param) == ("model_not_found", "model")


@SUITE.scenario(requests=1)
async def a_chat_with_an_unknown_model_is_not_found(sdk: Sdk) -> None:
    create = sdk.client.chat.completions.create
    messages = [{"role": "user", "content": "Hello"}]
    error = await raised(openai.NotFoundError, lambda: create(model="gpt-4o", messages=messages))
    assert (error.code, error.param) == ("model_not_found", "model")
    assert sdk.model in error.message


@SUITE.scenario(requests=1)
async def embeddings_are_not_found(sdk: Sdk) -> None:
    create = sdk.client.embeddings.create
    error = await raised(openai.NotFoundError, lambda: create(model=sdk.model, input="text"))
    assert "/v1/chat/completions" in error.message


@SUITE.scenario(requests=1)
async def responses_are_not_found(sdk: Sdk) -> None:
    create = sdk.client.responses.create
    error = await raised(openai.NotFoundError, lambda: create(model=sdk.model, input="text"))
    assert "/v1/chat/completions" in error.message


@SUITE.scenario(requests=2)
async def a_wrong_key_is_an_authentication_error(sdk: Sdk) -> None:
    for key in ("wrong", f"wf-{'a' * 10}-{'0' * 64}"):
        models = sdk.client.with_options(api_key=key).models
        error = await raised(openai.AuthenticationError, models.list)
        assert (error.status_code, error.code) == (401, "invalid_api_key")


@SUITE.scenario(requests=2)
async def a_model_that_the_key_may_not_call_is_denied(sdk: Sdk) -> None:
    other = sdk.with_key(sdk.other_key)
    for stream in (False, True):
        error = await raised(openai.PermissionDeniedError, lambda stream=stream: other.chat(stream=stream))
        assert (error.status_code, error.param) == (403, "model")


@SUITE.scenario(requests=2)
async def a_tenant_at_its_limit_gets_the_seconds_to_wait(sdk: Sdk) -> None:
    narrow = sdk.with_key(sdk.narrow_key)
    stream = await narrow.chat(stream=True, max_tokens=900, extra_body={"ignore_eos": True})
    error = await raised(openai.RateLimitError, narrow.chat)
    await settled(stream.close())
    assert (error.status_code, error.code) == (429, "tenant_quota_exceeded")
    assert int(error.response.headers["retry-after"]) >= 1


@SUITE.scenario(requests=2)
async def a_timeout_is_a_timeout_and_the_client_goes_on(sdk: Sdk) -> None:
    fields = {"max_tokens": 900, "extra_body": {"ignore_eos": True}}
    await raised(openai.APITimeoutError, lambda: sdk.chat(timeout=0.1, **fields))
    assert (await sdk.chat()).choices[0].message.content
