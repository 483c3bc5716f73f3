"""Requests with several choices or prompts, and prompts as text or as token ids."""

import json

from warmfleet_testing.engine.worker_process import TINY_NAME
from warmfleet_testing.engine.worker_requests import CHAT, chat_body, fresh_text


def test_each_of_n_choices_is_the_answer_to_the_next_seed_and_the_prompt_counts_once(client):
    # given a prompt of several blocks that no request has sent
    body = chat_body(fresh_text(200), temperature=1.5, ignore_eos=True)

    # when
    several = client.post(CHAT, json={**body, "n": 4, "seed": -2}).json()
    alone = [client.post(CHAT, json={**body, "seed": seed}).json() for seed in (-2, -1, 0, 1)]

    # then
    texts = [choice["message"]["content"] for choice in several["choices"]]
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2, 3]
    assert texts == [answer["choices"][0]["message"]["content"] for answer in alone]
    assert len(set(texts)) == 4
    assert several["usage"]["prompt_tokens"] == alone[0]["usage"]["prompt_tokens"]
    assert several["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert several["usage"]["completion_tokens"] == 32


def test_the_choices_of_a_prompt_share_its_blocks(client, shared_worker):
    def hit_tokens() -> float:
        lines = client.get("/metrics").text.splitlines()
        return next(float(x.split()[-1]) for x in lines if x.startswith("vllm:prefix_cache_hits_total{"))

    body = chat_body(fresh_text(200), n=5)
    before = hit_tokens()

    answer = client.post(CHAT, json=body).json()

    # Four followers find every full block of the leader.
    assert hit_tokens() - before == 4 * ((answer["usage"]["prompt_tokens"] - 1) // 16 * 16) > 0
    assert shared_worker.wait_until_idle()["pinned_blocks"] == 0


def test_the_choices_of_several_prompts_stand_prompt_by_prompt(client):
    body = {"model": TINY_NAME, "max_tokens": 6, "seed": 7, "ignore_eos": True, "echo": True}

    both = client.post(
        "/v1/completions", json={**body, "prompt": ["one", "two"], "n": 2, "best_of": 2}
    ).json()
    alone = [
        client.post("/v1/completions", json={**body, "prompt": prompt, "seed": seed}).json()
        for prompt in ("one", "two")
        for seed in (7, 8)
    ]

    assert [choice["index"] for choice in both["choices"]] == [0, 1, 2, 3]
    assert [x["text"] for x in both["choices"]] == [answer["choices"][0]["text"] for answer in alone]
    assert both["usage"]["prompt_tokens"] == 6
    assert both["usage"]["completion_tokens"] == 24


def test_several_prompts_are_several_choices(client):
    body = {"model": TINY_NAME, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    prompts = [fresh_text(), fresh_text(), "short"]

    together = client.post("/v1/completions", json={**body, "prompt": prompts}).json()
    alone = [client.post("/v1/completions", json={**body, "prompt": prompt}).json() for prompt in prompts]

    assert [choice["index"] for choice in together["choices"]] == [0, 1, 2]
    assert [choice["text"] for choice in together["choices"]] == [
        answer["choices"][0]["text"] for answer in alone
    ]
    assert together["usage"]["prompt_tokens"] == sum(answer["usage"]["prompt_tokens"] for answer in alone)
    assert together["usage"]["completion_tokens"] == 18


def test_text_and_its_token_ids_are_the_same_prompt(client):
    text = fresh_text()
    tokens = client.post("/tokenize", json={"model": TINY_NAME, "prompt": text}).json()["tokens"]

    answers = [
        client.post("/v1/completions", json={"model": TINY_NAME, "prompt": prompt, "temperature": 0}).json()
        for prompt in (text, tokens, [text], [tokens])
    ]

    assert len({json.dumps(answer["choices"]) for answer in answers}) == 1
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": text}
