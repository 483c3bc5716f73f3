"""What a request means: accepted, normalised, or refused with the field, the limit and the value."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.openai import (
    MAX_PROMPTS,
    UNSUPPORTED,
    ChatRequest,
    CompletionRequest,
    RequestError,
    decode_chat_request,
    decode_completion_request,
    decode_detokenize_request,
    decode_tokenize_request,
)
from warmfleet_contracts.openai.request_fields import MAX_JSON_BRACKETS, MAX_JSON_DEPTH, check_json_depth
from warmfleet_contracts.prompts.chat_message import ChatMessage

HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: object) -> ChatRequest:
    return decode_chat_request(json.dumps({"model": "m", "messages": HELLO, **fields}).encode())


def refusal_of(**fields: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    return caught.value


def test_a_minimal_chat_request_gets_the_documented_defaults():
    request = chat()

    assert request.messages == [ChatMessage(role="user", content="hello")]
    assert (request.stream, request.include_usage, request.max_output_tokens) == (False, False, None)
    assert (request.temperature, request.top_p, request.top_k, request.min_p) == (1.0, 1.0, 0, 0.0)
    assert (request.seed, request.cache_salt, request.stop, request.n) == (None, "", (), 1)


def test_null_means_absent_for_every_field():
    names = ["stream", "stream_options", "seed", "cache_salt", "max_tokens", "max_completion_tokens"]
    names += ["temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "ignore_eos", *UNSUPPORTED]
    names += ["presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens", "n"]
    names += ["best_of", "logprobs", "top_logprobs"]

    assert chat(**dict.fromkeys(names)) == chat()


def test_unknown_fields_are_ignored_and_named():
    assert chat(reasoning_effort="low", my_field={"deep": [1]}).ignored_fields == (
        "reasoning_effort",
        "my_field",
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("user", "u"),
        ("metadata", {"a": "b"}),
        ("store", True),
        ("service_tier", "auto"),
        ("parallel_tool_calls", False),
        ("prompt_cache_key", "k"),
        ("safety_identifier", "s"),
        ("tools", []),
        ("tool_choice", "auto"),
        ("tool_choice", "none"),
        ("response_format", {"type": "text"}),
        ("n", 1),
        ("best_of", 1),
        ("presence_penalty", 0),
        ("frequency_penalty", 0.0),
        ("logit_bias", {}),
        ("logprobs", False),
        ("top_logprobs", 0),
    ],
)
def test_neutral_values_change_nothing(field, value):
    assert chat(**{field: value}) == chat()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_schema"}),
        ("audio", {"voice": "x"}),
        ("prompt_logprobs", 1),
        ("return_tokens_as_token_ids", True),
        ("chat_template", "{{ x }}"),
    ],
)
def test_a_field_that_would_change_the_answer_is_refused_by_name(field, value):
    error = refusal_of(**{field: value})

    assert (error.status, error.param, error.code) == (400, field, "unsupported_parameter")
    assert field in error.message


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("temperature", 2.5, ["temperature", "2", "2.5"]),
        ("temperature", -0.1, ["temperature", "0", "-0.1"]),
        ("temperature", "hot", ["temperature", "float", "hot"]),
        ("top_p", 1.5, ["top_p", "1.5"]),
        ("min_p", -1, ["min_p", "-1"]),
        ("top_k", -2, ["top_k", "-2"]),
        ("presence_penalty", 2.1, ["presence_penalty", "2", "2.1"]),
        ("frequency_penalty", -3, ["frequency_penalty", "-2", "-3"]),
        ("repetition_penalty", 0, ["repetition_penalty", "0.01", "0"]),
        ("logit_bias", {"7": 101}, ["logit_bias", "100", "101"]),
        ("logit_bias", {"word": 1}, ["logit_bias", "int", "word"]),
        ("logit_bias", {"-1": 1}, ["logit_bias", "0", "-1"]),
        ("logit_bias", dict.fromkeys(map(str, range(1025)), 1), ["logit_bias", "1024"]),
        ("n", 0, ["n", "1", "0"]),
        ("n", 9, ["n", "8", "9"]),
        ("best_of", 3, ["best_of", "1", "3"]),
        ("min_tokens", -1, ["min_tokens", "0", "-1"]),
        ("max_tokens", 0, ["max_tokens", "1", "0"]),
        ("max_completion_tokens", "many", ["max_completion_tokens", "int"]),
        ("seed", 2**63, ["seed"]),
        ("stop", ["x"] * 17, ["stop", "16", "17"]),
        ("stop", "x" * 257, ["stop", "256", "257"]),
        ("stop", "", ["stop"]),
        ("stream", "yes", ["stream", "bool"]),
        ("model", "", ["model"]),
        ("logprobs", 5, ["logprobs", "bool", "5"]),
        ("top_logprobs", 21, ["top_logprobs", "20", "21"]),
        ("top_logprobs", -1, ["top_logprobs", "0", "-1"]),
        ("top_logprobs", 3, ["top_logprobs", "logprobs", "3"]),
    ],
)
def test_a_wrong_value_is_refused_with_field_limit_and_value(field, value, words):
    error = refusal_of(**{field: value})

    assert error.status == 400
    assert error.param == field
    assert all(word in error.message for word in words)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b"null", b'{"model": "\\ud800"}', b"\xff\xfe", b"{}"]
)
def test_a_body_that_is_no_request_is_refused(body):
    for decode in (decode_chat_request, decode_completion_request, decode_tokenize_request):
        with pytest.raises(RequestError) as caught:
            decode(body)
        assert caught.value.status == 400


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_request_error(body):
    for decode in (decode_chat_request, decode_completion_request, decode_detokenize_request):
        with contextlib.suppress(RequestError):
            decode(body)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["role", "content", "type", "text"]), inner)
        ),
        max_leaves=12,
    )
)
def test_no_value_of_messages_or_prompt_raises_anything_but_a_request_error(value):
    for decode, field in ((decode_chat_request, "messages"), (decode_completion_request, "prompt")):
        with contextlib.suppress(RequestError):
            decode(json.dumps({"model": "m", field: value}).encode())


def test_text_parts_are_joined_and_other_parts_refused():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    image = {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}

    assert chat(messages=[{"role": "user", "content": parts}]).messages[0].content == "one\ntwo"
    error = refusal_of(messages=[{"role": "user", "content": [*parts, image]}])
    assert "messages[0].content[2].type" in error.message
    assert error.code == "unsupported_parameter"


def test_only_an_assistant_message_may_be_empty():
    quiet = {"role": "assistant", "content": None}

    assert chat(messages=[*HELLO, quiet]).messages[1] == ChatMessage(role="assistant", content="")
    assert "messages[0].content" in refusal_of(messages=[{"role": "user", "content": None}]).message


def test_a_developer_message_becomes_a_system_message():
    assert chat(messages=[{"role": "developer", "content": "x"}]).messages[0].role == "system"


def test_the_newer_name_of_the_output_limit_wins():
    assert chat(max_tokens=5, max_completion_tokens=7).max_output_tokens == 7
    assert chat(max_tokens=65_535).max_output_tokens == 65_535


def test_bias_and_penalties_are_read_as_numbers():
    request = chat(logit_bias={"50256": -100, "3": 1.5}, presence_penalty=1, repetition_penalty=1.2)

    assert request.logit_bias == {50256: -100.0, 3: 1.5}
    assert (request.presence_penalty, request.repetition_penalty) == (1.0, 1.2)


def test_the_least_length_is_not_beyond_the_greatest():
    assert chat(min_tokens=5, max_tokens=5).min_tokens == 5
    assert chat(min_tokens=5000).min_tokens == 5000
    error = refusal_of(min_tokens=6, max_tokens=5)
    assert error.param == "min_tokens"
    assert "5, got 6" in error.message


def test_best_of_n_is_n():
    assert chat(n=3, best_of=3).n == chat(n=3).n == 3
    assert refusal_of(n=2, best_of=4).code == "unsupported_parameter"


def test_a_negative_seed_is_the_same_64_bits():
    assert chat(seed=-1).seed == 2**64 - 1


def test_a_nucleus_of_nothing_is_the_most_likely_token():
    assert chat(top_p=0).top_k == 1


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("text", ["text"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([[]], [[]]),
    ],
)
def test_a_completion_prompt_has_four_shapes(prompt, expected):
    request = decode_completion_request(json.dumps({"model": "m", "prompt": prompt}).encode())

    assert request.prompts == expected
    assert request.max_output_tokens == 16


def test_equal_prompts_of_token_ids_are_decoded_once():
    first, second, third, fourth = decode_completion_request(
        b'{"model": "m", "prompt": [ [5, 6],[7] ,\n[5, 6], [] ] }'
    ).prompts

    assert (first, second, third, fourth) == ([5, 6], [7], [5, 6], [])
    assert first is third


@pytest.mark.parametrize(
    "prompt",
    [
        "[[1], 5, [2]]",
        "[[1], 5]",
        "[5, [1]]",
        "[[[1]]]",
        "[[1], [[2]]]",
        '[[1], "["]',
        "[[1], null]",
        "[[1.5]]",
    ],
)
def test_no_element_beside_the_arrays_of_token_ids_is_passed_over(prompt):
    with pytest.raises(RequestError) as caught:
        decode_completion_request(b'{"model": "m", "prompt": ' + prompt.encode() + b"}")

    assert caught.value.param == "prompt"


def completion(**fields: object) -> CompletionRequest:
    return decode_completion_request(json.dumps({"model": "m", "prompt": "x", **fields}).encode())


def test_log_probabilities_are_requested_in_two_ways():
    assert chat().logprobs is chat(top_logprobs=0).logprobs is completion().logprobs is None
    assert chat(logprobs=True).logprobs == completion(logprobs=0).logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).logprobs == completion(logprobs=20).logprobs == 20
    assert completion(logprobs=False).logprobs is completion(logprobs=None).logprobs is None


@pytest.mark.parametrize("value", [21, -1, True, "5", 1.5])
def test_a_completions_log_probabilities_are_a_small_number(value):
    with pytest.raises(RequestError) as caught:
        completion(logprobs=value)

    assert (caught.value.status, caught.value.param) == (400, "logprobs")


def test_only_a_request_for_the_prompts_log_probabilities_may_not_read_the_cache():
    assert completion(echo=True, logprobs=0).prompt_logprobs == 0
    assert not completion(echo=True, logprobs=0).may_read_cache
    for request in (completion(echo=True), completion(logprobs=5), chat(logprobs=True, echo=True)):
        assert request.prompt_logprobs is None
        assert request.may_read_cache


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_an_echo_may_have_nothing_after_it(name):
    assert completion(echo=True, **{name: 0}).max_output_tokens == 0
    with pytest.raises(RequestError, match="echo") as caught:
        completion(**{name: 0})
    assert caught.value.param == "max_tokens"
    assert refusal_of(**{name: 0}).param == name


def test_the_newer_name_of_a_completions_limit_wins():
    assert completion(max_tokens=5, max_completion_tokens=7).max_output_tokens == 7
    assert completion(max_tokens=5, max_completion_tokens=None).max_output_tokens == 5


@pytest.mark.parametrize(
    "prompt", [[], ["a", [1]], [1, "a"], [-1], [2**32], {"a": 1}, ["x"] * (MAX_PROMPTS + 1)]
)
def test_a_prompt_of_another_shape_is_refused(prompt):
    with pytest.raises(RequestError) as caught:
        decode_completion_request(json.dumps({"model": "m", "prompt": prompt}).encode())

    assert caught.value.param == "prompt"


def test_tokenize_takes_exactly_one_of_prompt_and_messages():
    assert decode_tokenize_request(b'{"prompt": ""}').prompt == ""
    assert decode_tokenize_request(json.dumps({"messages": HELLO}).encode()).messages is not None
    for body in ({}, {"prompt": "x", "messages": HELLO}):
        with pytest.raises(RequestError):
            decode_tokenize_request(json.dumps(body).encode())


def test_a_message_of_a_thousand_turns_is_read():
    assert len(chat(messages=HELLO * 1000).messages) == 1000


def test_nesting_is_bounded_wherever_it_stands():
    deepest = "[" * (MAX_JSON_DEPTH - 1) + "]" * (MAX_JSON_DEPTH - 1)
    too_deep = f"[{deepest}]"

    chat(extra=json.loads(deepest))
    assert refusal_of(extra=json.loads(too_deep)).code == "json_too_deep"


def test_a_body_of_brackets_only_is_refused_before_it_is_read():
    with pytest.raises(RequestError, match="brackets"):
        decode_chat_request(b'{"x":[' + b"[]," * (MAX_JSON_BRACKETS // 2) + b"1]}")


@given(st.text(alphabet='[]{}"\\a', max_size=200))
def test_brackets_inside_strings_do_not_count(text):
    check_json_depth(json.dumps({"x": text, "y": [[text] * 70]}).encode())


def test_an_error_is_openais_json_and_has_the_seconds_to_wait():
    error = RequestError(
        "busy", status=429, type="rate_limit_error", code="overloaded", retry_after_seconds=3
    )

    assert json.loads(error.body()) == {
        "error": {"message": "busy", "type": "rate_limit_error", "param": None, "code": "overloaded"}
    }
    assert error.headers() == {"retry-after": "3"}
    assert error.event() == b"data: " + error.body() + b"\n\n"


def test_a_priority_is_taken_within_its_bounds_and_refused_beyond():
    assert chat().priority == 0
    for priority in (-100, -1, 0, 100):
        assert chat(priority=priority).priority == priority
    for wrong in (-101, 101, 1.5, "high"):
        assert refusal_of(priority=wrong).param == "priority"
