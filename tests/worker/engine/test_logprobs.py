"""Log probabilities as a client gets them: the values of transformers, OpenAI's shapes, plain as streamed."""

import json
import math
import secrets
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import OpenAI

from warmfleet_testing.engine.tiny_tokenizer import TINY_CONTROL_TOKENS, tiny_tokenizer
from warmfleet_testing.engine.worker_process import TINY_NAME
from warmfleet_worker.server.logprobs_json import representable

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOKENIZER = tokenizers.Tokenizer.from_str(json.dumps(tiny_tokenizer()))
TOLERANCE = 1e-4
NEVER_END = {str(token_id): -100 for token_id in range(4)}
"""No control token is ever chosen: every token brings bytes of the text."""


@pytest.fixture(scope="module")
def oracle(tiny_served_path: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_served_path, dtype=torch.float32)


def expected_logprobs(oracle: Any, token_ids: list[int]) -> torch.Tensor:
    """log_softmax of transformers' logits, [tokens, vocabulary]: row i is of token i + 1."""
    with torch.inference_mode():
        logits: torch.Tensor = oracle(torch.tensor([token_ids])).logits[0]
    return logits.log_softmax(dim=-1)


def cold() -> dict[str, str]:
    """A salt of its own: a prompt whose blocks are found computes other shapes, and so other last digits."""
    return {"cache_salt": secrets.token_hex(8)}


def completion(client: httpx.Client, **fields: object) -> dict[str, Any]:
    response = client.post(COMPLETIONS, json={"model": TINY_NAME, "temperature": 0, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def streamed(client: httpx.Client, path: str, body: dict[str, object]) -> list[dict[str, Any]]:
    """The choices of all chunks, in order."""
    text = client.post(path, json={**body, "stream": True}).text
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
    assert events.pop() == "[DONE]"
    return [choice for event in events for choice in json.loads(event)["choices"]]


def test_values_and_ids_are_those_of_transformers(client, oracle):
    prompt = TOKENIZER.encode("hello, is it you").ids
    body = {"model": TINY_NAME, "prompt": prompt, "max_tokens": 24, "logprobs": 5, "ignore_eos": True}
    choice = client.post(
        COMPLETIONS, json={**body, "temperature": 1.3, "top_k": 40, "seed": 5, "return_token_ids": True}
    ).json()["choices"][0]

    ids = choice["token_ids"]
    expected = expected_logprobs(oracle, prompt + ids)[len(prompt) - 1 : -1]
    logprobs = choice["logprobs"]
    assert len(ids) == len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == 24
    assert logprobs["token_logprobs"] == pytest.approx(
        expected.gather(1, torch.tensor(ids)[:, None]).flatten().tolist(), abs=TOLERANCE
    )
    for row, top, token_id in zip(expected, logprobs["top_logprobs"], ids, strict=True):
        best = row.topk(5)
        # Two tokens that are no text by themselves share one name.
        names = [TOKENIZER.decode([number], skip_special_tokens=False) for number in best.indices.tolist()]
        wanted: dict[str, float] = {}
        for name, value in zip(names, best.values.tolist(), strict=True):
            wanted.setdefault(name, value)
        wanted.setdefault(TOKENIZER.decode([token_id], skip_special_tokens=False), float(row[token_id]))
        assert list(top) == list(wanted)
        assert list(top.values()) == pytest.approx(list(wanted.values()), abs=TOLERANCE)


def test_an_echoed_prompt_is_scored_token_by_token(client, oracle):
    prompt = TOKENIZER.encode("hello en€d " * 12).ids
    choice = completion(client, prompt=prompt, echo=True, logprobs=1, max_tokens=0)["choices"][0]

    expected = expected_logprobs(oracle, prompt)
    logprobs = choice["logprobs"]
    assert choice["text"] == TOKENIZER.decode(prompt)
    assert choice["finish_reason"] == "length"
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == pytest.approx(
        expected[:-1].gather(1, torch.tensor(prompt[1:])[:, None]).flatten().tolist(), abs=TOLERANCE
    )
    best = expected[:-1].max(dim=-1).values.tolist()
    assert [max(top.values()) for top in logprobs["top_logprobs"][1:]] == pytest.approx(best, abs=TOLERANCE)


def test_the_openai_client_reads_both_shapes(shared_worker):
    client = OpenAI(base_url=f"{shared_worker.url}/v1", api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": "hello"}]
    options: Any = {"model": TINY_NAME, "temperature": 0, "max_tokens": 12, "logit_bias": NEVER_END}

    chat = client.chat.completions.create(
        messages=messages, logprobs=True, top_logprobs=3, extra_body=cold(), **options
    )
    entries = chat.choices[0].logprobs.content
    text = client.completions.create(prompt="hello", logprobs=3, **options).choices[0]
    chunks = client.chat.completions.create(
        messages=messages, logprobs=True, top_logprobs=3, stream=True, extra_body=cold(), **options
    )
    pieces = [chunk.choices[0].logprobs for chunk in chunks]

    assert len(entries) == chat.usage.completion_tokens == 12
    assert b"".join(bytes(entry.bytes) for entry in entries).decode("utf-8", "replace") == (
        chat.choices[0].message.content
    )
    assert chat.choices[0].logprobs.refusal is None
    assert all(len(entry.top_logprobs) == 3 for entry in entries)
    assert all(entry.top_logprobs[0].logprob == entry.logprob for entry in entries)  # greedy
    assert [entry for piece in pieces if piece for entry in piece.content] == entries
    assert len(text.logprobs.tokens) == len(text.logprobs.text_offset) == 12
    assert text.logprobs.text_offset[0] == 0


def test_a_sequence_that_does_not_ask_gets_null(client):
    choice = completion(client, prompt="abc", max_tokens=4)["choices"][0]

    assert choice["logprobs"] is None
    assert all(
        piece["logprobs"] is None
        for piece in streamed(client, COMPLETIONS, {"model": TINY_NAME, "prompt": "abc", "max_tokens": 4})
    )


# One answer, plain and in pieces.

PATHS = (CHAT, COMPLETIONS)


def request_bodies() -> st.SearchStrategy[dict[str, Any]]:
    texts = st.sampled_from(["hello", "héllo €", "end of it"])
    return st.fixed_dictionaries(
        {
            "path": st.sampled_from(PATHS),
            "prompts": st.lists(texts, min_size=1, max_size=2),
            "top": st.integers(0, 4),
            "n": st.integers(1, 2),
            "seed": st.integers(0, 99),
            "max_tokens": st.integers(1, 20),
            "temperature": st.sampled_from([0.0, 1.0, 1.7]),
            "return_token_ids": st.booleans(),
            "ignore_eos": st.booleans(),
            "echo": st.booleans(),
            # Bytes below 128 only, or any: most characters are then torn, and stop strings are met.
            "logit_bias": st.sampled_from([{}, {str(token_id): 30 for token_id in range(60, 70)}]),
            "stop": st.lists(st.text("YZ[\\]^_abc\ufffd", min_size=1, max_size=2), max_size=2),
        }
    )


def body_of(drawn: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    fields = dict(drawn)
    path, prompts, top, echo = (fields.pop(name) for name in ("path", "prompts", "top", "echo"))
    body = {"model": TINY_NAME, **fields}
    if path == CHAT:
        messages = [{"role": "user", "content": prompts[0]}]
        return path, {**body, "messages": messages, "logprobs": True, "top_logprobs": top}
    return path, {**body, "prompt": prompts, "logprobs": top, "echo": echo}


def flattened(path: str, logprobs: dict[str, Any]) -> tuple[list[Any], list[float]]:
    """What must be equal in every digit, and the values, which a batch of another shape rounds otherwise."""
    if path == COMPLETIONS:
        pairs = zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
        values = [part for value, top in pairs if top for part in (value, max(top.values()))]
        return list(zip(logprobs["tokens"], logprobs["text_offset"], strict=True)), values
    entries = [part for entry in logprobs["content"] for part in (entry, *entry["top_logprobs"])]
    return [(part["token"], part["bytes"]) for part in entries], [part["logprob"] for part in entries]


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(drawn=request_bodies())
def test_the_pieces_of_a_stream_are_the_plain_answer(client, drawn):
    path, body = body_of(drawn)
    plain = client.post(path, json={**body, **cold()}).raise_for_status().json()
    pieces = streamed(client, path, {**body, **cold()})

    for choice in plain["choices"]:
        mine = [piece for piece in pieces if piece["index"] == choice["index"]]
        text = text_of(choice)
        got = [flattened(path, piece["logprobs"]) for piece in mine if piece["logprobs"]]
        exact, values = flattened(path, choice["logprobs"])
        assert [part for part, _ in got for part in part] == exact
        assert [value for _, part in got for value in part] == pytest.approx(values, abs=TOLERANCE)
        if drawn["return_token_ids"]:
            ids = [token_id for piece in mine for token_id in piece.get("token_ids", [])]
            assert ids == choice["token_ids"]
        if path == COMPLETIONS:
            check_texts(mine, text, drawn, choice)
    if path == COMPLETIONS:
        entries = sum(len(choice["logprobs"]["tokens"]) for choice in plain["choices"])
        usage, echoes = plain["usage"], drawn["n"] if drawn["echo"] else 0
        assert entries == usage["completion_tokens"] + echoes * usage["prompt_tokens"]


def check_texts(
    pieces: list[dict[str, Any]], text: str, drawn: dict[str, Any], choice: dict[str, Any]
) -> None:
    """Every piece has the tokens that begin in its text; the last one also those without text."""
    assert "".join(piece["text"] for piece in pieces) == text
    end = 0
    for piece in pieces:
        start, end = end, end + len(piece["text"])
        offsets = piece["logprobs"]["text_offset"] if piece["logprobs"] else []
        last = piece["finish_reason"] is not None
        assert all(offset >= start for offset in offsets)
        assert all(offset < end for offset in offsets) or last
    offsets = choice["logprobs"]["text_offset"]
    assert offsets == sorted(offsets)
    if drawn["return_token_ids"]:
        given_prompt = drawn["prompts"][choice["index"] // drawn["n"]] if drawn["echo"] else ""
        prompt_tokens = len(TOKENIZER.encode(given_prompt).ids)
        assert len(offsets) == prompt_tokens + len(choice["token_ids"])


# What is listed.

HELLO_ID = TOKENIZER.token_to_id("hello")
FIRST_ID, SECOND_ID = TOKENIZER.encode("é").ids
E_ACUTE = {
    "logit_bias": {str(FIRST_ID): 100, str(SECOND_ID): 85, str(HELLO_ID): 75},
    "repetition_penalty": 1.5,
    "max_tokens": 3,
}
"""The two bytes of one character, then a word: each wins once, as it loses a third for having come."""


END_ID = TINY_CONTROL_TOKENS.index("<|im_end|>")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("with_ids", [False, True])
def test_tokens_that_a_stop_string_cut_off_are_in_a_completion_and_beside_ids(client, path, with_ids):
    choice, tokens = listed(
        client, path, with_ids, logit_bias={str(HELLO_ID): 100}, stop="lohe", max_tokens=8
    )

    assert text_of(choice) == "hel"
    assert tokens == (["hello", "hello"] if with_ids or path == COMPLETIONS else ["hello"])
    assert choice.get("token_ids") == ([HELLO_ID] * 2 if with_ids else None)
    if path == COMPLETIONS:
        assert choice["logprobs"]["text_offset"] == [0, 5]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize(
    ("first_id", "text"), [(HELLO_ID, "hello"), (FIRST_ID, "\ufffd")], ids=["word", "torn-character"]
)
def test_an_end_token_is_in_a_completion_and_beside_its_id(client, path, with_ids, first_id, text):
    # The end token is the most likely by far, and may not come first.
    bias = {str(first_id): 70, str(END_ID): 100}
    choice, tokens = listed(client, path, with_ids, logit_bias=bias, min_tokens=1)

    assert (text_of(choice), choice["finish_reason"]) == (text, "stop")
    assert tokens == ([text, "<|im_end|>"] if with_ids or path == COMPLETIONS else [text])
    if path == COMPLETIONS:
        assert choice["logprobs"]["text_offset"] == [0, len(text)]


def listed(
    client: httpx.Client, path: str, with_ids: bool, **fields: object
) -> tuple[dict[str, Any], list[str]]:
    """A choice, and the tokens that it lists with log probabilities."""
    body = {"model": TINY_NAME, "temperature": 0, "return_token_ids": with_ids, **fields}
    if path == CHAT:
        body |= {"messages": [{"role": "user", "content": "x"}], "logprobs": True}
    else:
        body |= {"prompt": "x", "logprobs": 0}
    choice: dict[str, Any] = client.post(path, json=body).raise_for_status().json()["choices"][0]
    if path == CHAT:
        return choice, [entry["token"] for entry in choice["logprobs"]["content"]]
    return choice, choice["logprobs"]["tokens"]


def text_of(choice: dict[str, Any]) -> str:
    text: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return text


def test_the_bytes_of_a_torn_character_are_exact_and_come_with_its_text(client):
    messages = [{"role": "user", "content": "x"}]
    body = {"model": TINY_NAME, "messages": messages, "temperature": 0, "logprobs": True}
    plain = client.post(CHAT, json={**body, **E_ACUTE}).json()["choices"][0]
    pieces = streamed(client, CHAT, {**body, **E_ACUTE})

    assert plain["message"]["content"] == "éhello"
    entries = plain["logprobs"]["content"]
    assert [entry["bytes"] for entry in entries] == [[0xC3], [0xA9], list(b"hello")]
    assert [entry["token"] for entry in entries] == ["\ufffd", "\ufffd", "hello"]
    for piece in pieces:
        if piece["logprobs"]:
            content = b"".join(bytes(entry["bytes"]) for entry in piece["logprobs"]["content"])
            assert content.decode() == piece["delta"].get("content", "")


def test_the_tokens_of_one_character_share_its_offset(client):
    choice = completion(client, prompt="ab", echo=True, logprobs=0, **E_ACUTE)["choices"][0]

    assert choice["text"] == "abéhello"
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 2, 3]


# Limits, bounds and the cache.


def test_a_scored_prompt_finds_nothing_cached_and_leaves_its_blocks(client):
    prompt = TOKENIZER.encode(secrets.token_hex(40)).ids
    body = {"model": TINY_NAME, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    scored = {**body, "echo": True, "logprobs": 0}

    answers = [client.post(COMPLETIONS, json=json_body) for json_body in (scored, scored, body)]

    cached = [int(answer.headers["x-warmfleet-cached-tokens"]) for answer in answers]
    assert cached == [0, 0, len(prompt) - 16]
    assert [answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers] == cached


def test_a_prompt_as_long_as_the_context_can_be_scored(client):
    limit = client.get(f"/v1/models/{TINY_NAME}").json()["max_model_len"]
    body = {"model": TINY_NAME, "prompt": [70] * limit, "echo": True, "logprobs": 0}

    assert client.post(COMPLETIONS, json={**body, "max_tokens": 0}).status_code == 200
    assert client.post(COMPLETIONS, json={**body, "max_tokens": 1}).status_code == 400


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_of_nothing_more_is_the_prompt(client, stream):
    body = {"model": TINY_NAME, "prompt": ["hello", "end"], "echo": True, "max_tokens": 0}
    if stream:
        choices = streamed(client, COMPLETIONS, body)
    else:
        answer = client.post(COMPLETIONS, json=body).json()
        choices = answer["choices"]
        assert answer["usage"]["completion_tokens"] == 0

    assert sorted(choice["text"] for choice in choices) == ["end", "hello"]
    assert {choice["finish_reason"] for choice in choices} == {"length"}


def test_an_answer_beyond_the_bound_is_refused_before_any_work(client):
    body = {"model": TINY_NAME, "prompt": ["x"] * 64, "n": 4, "max_tokens": 10_000, "logprobs": 20}
    error = client.post(COMPLETIONS, json=body).json()["error"]

    assert error["param"] == "logprobs"
    assert "4194304" in error["message"]


@pytest.mark.parametrize("value", [-math.inf, math.nan, -1e30, -9999.5])
def test_what_json_cannot_hold_is_openais_least(value):
    assert representable(value) == -9999.0
    assert representable(-9998.0) == -9998.0


@pytest.mark.parametrize(
    "one_more",
    [
        pytest.param({}, id="text"),
        pytest.param({"logit_bias": {str(END_ID): 100}}, id="end-token"),
        pytest.param({"logit_bias": {str(END_ID): 100}, "ignore_eos": True}, id="control-token"),
        pytest.param({"logit_bias": {str(FIRST_ID): 100}}, id="part-of-a-character"),
        pytest.param({"logit_bias": {str(HELLO_ID): 100}, "stop": ["hello"]}, id="stop-string"),
    ],
)
def test_lm_evals_way_of_scoring_a_continuation_works(client, oracle, one_more):
    """Token ids, echo, one token too many: what EleutherAI's harness sends and how it reads the answer."""
    context, continuation = TOKENIZER.encode("hello").ids, TOKENIZER.encode(" hello").ids
    prompts = [context + continuation, context + continuation[:1]]
    body = {"prompt": prompts, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True, **one_more}

    choices = completion(client, **body)["choices"]

    for prompt, choice in zip(prompts, sorted(choices, key=lambda choice: choice["index"]), strict=True):
        values = choice["logprobs"]["token_logprobs"][len(context) : -1]
        tops = choice["logprobs"]["top_logprobs"][len(context) : -1]
        expected = expected_logprobs(oracle, prompt)[len(context) - 1 : -1]
        wanted = expected.gather(1, torch.tensor(prompt[len(context) :])[:, None]).sum()
        assert sum(values) == pytest.approx(float(wanted), abs=TOLERANCE * len(values))
        is_greedy = all(value == max(top.values()) for value, top in zip(values, tops, strict=True))
        assert is_greedy == (expected.argmax(dim=-1).tolist() == prompt[len(context) :])
