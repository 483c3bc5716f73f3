"""Log probabilities as a client gets them: the values of transformers, OpenAI's shapes, plain as streamed."""

import json
import secrets
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers
import torch
import transformers
from openai import OpenAI

from warmfleet_testing.tiny_tokenizer import tiny_tokenizer
from warmfleet_testing.worker_process import TINY_NAME

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOKENIZER = tokenizers.Tokenizer.from_str(json.dumps(tiny_tokenizer()))
TOLERANCE = 1e-4
NEVER_END = {str(token_id): -100 for token_id in range(4)}
"""No control token is ever chosen: every token brings bytes of the text."""


@pytest.fixture(scope="module")
def oracle(tiny_served_path: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_served_path, dtype=torch.float32)


def expected_logprobs(oracle: Any, token_ids: list[int]) -> torch.Tensor:
    """log_softmax of transformers' logits, [tokens, vocabulary]: row i speaks of token i + 1."""
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


def test_who_does_not_ask_gets_null(client):
    choice = completion(client, prompt="abc", max_tokens=4)["choices"][0]

    assert choice["logprobs"] is None
    assert all(
        piece["logprobs"] is None
        for piece in streamed(client, COMPLETIONS, {"model": TINY_NAME, "prompt": "abc", "max_tokens": 4})
    )
