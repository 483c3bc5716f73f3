"""A worker over loopback HTTP: answers, headers, refusals, probes."""

import contextlib
import json
from collections import Counter

import httpx
import msgspec
import openai
import pytest

from warmfleet_contracts.cache.blocks import BlockHash, block_hashes, block_root
from warmfleet_contracts.cache.worker_api import PromptAssets
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_testing.engine.worker_process import TINY_NAME, running_worker
from warmfleet_testing.engine.worker_requests import CHAT, chat_body, fresh_text
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_worker.model_store.assets import load_prompt_assets


def error_of(response: httpx.Response) -> dict[str, object]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_a_chat_request_is_answered_in_openais_shape(client):
    response = client.post(CHAT, json=chat_body(ignore_eos=True), headers={"x-request-id": "my-id_1"})

    answer = response.json()
    assert response.status_code == 200
    assert response.headers["x-request-id"] == "my-id_1"
    assert answer["id"] == "chatcmpl-my-id_1"
    assert answer["object"] == "chat.completion"
    assert answer["model"] == TINY_NAME
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_the_second_request_with_a_prefix_finds_it_cached(client):
    body = chat_body(fresh_text(200))

    first, second = (client.post(CHAT, json=body) for _ in range(2))

    prompt_tokens = first.json()["usage"]["prompt_tokens"]
    cached_tokens = second.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert first.json()["choices"] == second.json()["choices"]
    assert cached_tokens == (prompt_tokens - 1) // 16 * 16 > 0
    assert second.headers["x-warmfleet-cached-tokens"] == str(cached_tokens)


def test_the_headers_have_what_the_router_would_have_computed(client, shared_worker):
    text, salt = fresh_text(), b"salt of a tenant"
    cache = shared_worker.cache()
    tokenized = client.post("/tokenize", json={"messages": [{"role": "user", "content": text}]}).json()

    response = client.post(CHAT, json=chat_body(text), headers={"x-warmfleet-salt": salt.hex()})

    token_ids = tokenized["tokens"]
    root = block_root(bytes.fromhex(cache["identity"]), salt=salt)
    assert response.headers["x-warmfleet-prompt-tokens"] == str(len(token_ids))
    assert (
        response.headers["x-warmfleet-last-block"] == block_hashes(BlockHash(root), token_ids, 16)[-1].hex()
    )
    assert response.headers["x-warmfleet-position"].startswith(cache["epoch"] + ":")


def test_a_plain_answers_headers_have_the_tokens_of_all_its_prompts(client):
    prompts = [fresh_text(), fresh_text(), "hi"]
    body = {"model": TINY_NAME, "prompt": prompts, "max_tokens": 1, "n": 2, "best_of": 2}

    client.post("/v1/completions", json={**body, "prompt": prompts[1]})
    response = client.post("/v1/completions", json=body)

    usage = response.json()["usage"]
    assert response.headers["x-warmfleet-total-prompt-tokens"] == str(usage["prompt_tokens"])
    cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
    assert response.headers["x-warmfleet-total-cached-tokens"] == str(cached_tokens)
    assert cached_tokens > int(response.headers["x-warmfleet-cached-tokens"]) == 0
    assert usage["prompt_tokens"] > int(response.headers["x-warmfleet-prompt-tokens"])


def test_different_salts_share_nothing(client):
    body = chat_body(fresh_text(200))

    client.post(CHAT, json=body)
    by_header = client.post(CHAT, json=body, headers={"x-warmfleet-salt": "aa"})
    by_body = client.post(CHAT, json={**body, "cache_salt": "mine"})
    again = client.post(CHAT, json={**body, "cache_salt": "mine"})

    assert by_header.headers["x-warmfleet-cached-tokens"] == "0"
    assert by_body.headers["x-warmfleet-cached-tokens"] == "0"
    assert again.headers["x-warmfleet-cached-tokens"] != "0"


def test_a_prompt_shorter_than_a_block_has_no_last_block(client):
    response = client.post("/v1/completions", json={"model": TINY_NAME, "prompt": "hi"})

    assert response.headers["x-warmfleet-prompt-tokens"] == "2"
    assert "x-warmfleet-last-block" not in response.headers


def test_the_same_seed_gives_the_same_answer_and_the_bodys_seed_wins(client):
    body = chat_body(temperature=1.5, max_tokens=24, ignore_eos=True)

    def answer(seed: int | None, header: str) -> str:
        fields = {**body, "seed": seed}
        response = client.post(CHAT, json=fields, headers={"x-warmfleet-seed": header})
        return response.json()["choices"][0]["message"]["content"]

    assert answer(None, "5") == answer(None, "5") == answer(5, "6")
    assert answer(5, "6") != answer(6, "6")


def completion_ids(client: httpx.Client, **fields: object) -> list[int]:
    body = {"model": TINY_NAME, "prompt": [97, 98], "temperature": 0, "max_tokens": 40}
    response = client.post(
        "/v1/completions", json={**body, "return_token_ids": True, "ignore_eos": True, **fields}
    )
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["token_ids"]


def test_a_bias_makes_and_forbids_tokens(client):
    plain = completion_ids(client)

    made = completion_ids(client, logit_bias={"70": 100})
    forbidden = completion_ids(client, logit_bias=dict.fromkeys(map(str, plain), -100))

    assert made == [70] * 40
    assert not set(forbidden) & set(plain)


def test_penalties_spread_over_the_tokens_that_a_bias_allows(client):
    # given four tokens that are about equally likely, and nothing beside them
    biases = {"70": 100, "71": 99.9, "72": 99.8, "97": 99.7}

    # when / then the same token cannot win again and again
    for penalty in ({"frequency_penalty": 2}, {"frequency_penalty": 2, "presence_penalty": 2}):
        counts = Counter(completion_ids(client, logit_bias=biases, **penalty))
        assert set(counts) == {70, 71, 72, 97}
        assert max(counts.values()) - min(counts.values()) <= 4
    # the prompt's own token is avoided by the repetition penalty alone
    assert 97 not in completion_ids(client, logit_bias={"97": 100, "70": 95}, repetition_penalty=1.5)[:1]
    assert completion_ids(client, logit_bias={"97": 100, "70": 95}, presence_penalty=2)[0] == 97


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_ends_an_answer_before_its_least_length(client, stream):
    # given a token that always comes, and ends the answer
    fields = {"logit_bias": {"70": 100}, "stop_token_ids": [70], "stream": stream}
    body = {"model": TINY_NAME, "prompt": "abc", "temperature": 0, "return_token_ids": True, **fields}

    def answer(**more: object) -> tuple[list[int], str]:
        text = client.post("/v1/completions", json={**body, **more}).text
        events = text.split("\n\n") if stream else ["data: " + text]
        choices = [json.loads(event[6:])["choices"][0] for event in events if event[:7] == "data: {"]
        return [i for choice in choices for i in choice["token_ids"]], choices[-1]["finish_reason"]

    # when / then
    assert answer() == ([70], "stop")
    ids, reason = answer(min_tokens=6)
    assert (len(ids), ids[-1], reason) == (7, 70, "stop")
    assert 70 not in ids[:6]
    assert answer(min_tokens=6, max_tokens=6)[1] == "length"


def test_a_bias_of_a_token_that_the_model_does_not_have_is_refused(client):
    response = client.post(CHAT, json=chat_body(logit_bias={"99999": 1}))

    assert response.status_code == 400
    assert error_of(response)["param"] == "logit_bias"
    assert "99999" in str(error_of(response)["message"])


def test_the_ids_behind_an_answer_are_given_on_request_plain_and_streamed(client):
    body = {
        "model": TINY_NAME,
        "prompt": fresh_text(),
        "temperature": 0,
        "max_tokens": 12,
        "ignore_eos": True,
        "return_token_ids": True,
    }

    plain = client.post("/v1/completions", json=body).json()["choices"][0]
    events = client.post("/v1/completions", json={**body, "stream": True}).text.split("\n\n")
    streamed = [
        token_id
        for event in events
        if event.startswith("data: {")
        for token_id in json.loads(event[6:])["choices"][0]["token_ids"]
    ]

    assert len(plain["token_ids"]) == 12
    assert streamed == plain["token_ids"]
    ids = {"model": "tiny", "tokens": plain["token_ids"]}
    assert client.post("/detokenize", json=ids).json()["prompt"] == plain["text"]
    without = client.post("/v1/completions", json={**body, "return_token_ids": False}).json()
    assert "token_ids" not in without["choices"][0]


def test_echo_puts_the_prompt_before_the_text(client):
    body = {"model": TINY_NAME, "prompt": "hello", "temperature": 0}

    plain, echoed = (
        client.post("/v1/completions", json={**body, "echo": echo}).json()["choices"][0]["text"]
        for echo in (False, True)
    )

    assert echoed == "hello" + plain


def test_an_output_limit_beyond_the_context_is_clamped(client):
    prompt = [5] * 1000

    answer = client.post(
        "/v1/completions",
        json={"model": TINY_NAME, "prompt": prompt, "max_tokens": 65_535, "ignore_eos": True},
    ).json()

    assert answer["usage"]["total_tokens"] == 1024
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_prompt_that_does_not_fit_is_refused_in_the_words_clients_match(client):
    response = client.post("/v1/completions", json={"model": TINY_NAME, "prompt": [5] * 1024})

    error = error_of(response)
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 1024 tokens" in str(error["message"])
    assert "prompt is too long" in str(error["message"])


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, None),
        (b"[]", 400, None),
        (b'{"model": "other", "messages": [{"role": "user", "content": "x"}]}', 404, "model"),
        (b'{"model": "tiny", "messages": []}', 400, "messages"),
        (b'{"model": "tiny", "messages": [{"role": "root", "content": "x"}]}', 400, "messages"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "n": 9}', 400, "n"),
    ],
)
def test_a_wrong_chat_request_is_refused_in_openais_shape(client, body, status, param):
    response = client.post(CHAT, content=body)

    assert response.status_code == status
    assert error_of(response)["param"] == param
    assert response.headers["x-request-id"]


@pytest.mark.parametrize("prompt", ["", [267], [[]]])
def test_a_prompt_without_known_tokens_is_refused(client, prompt):
    response = client.post("/v1/completions", json={"model": TINY_NAME, "prompt": prompt})

    assert response.status_code == 400
    assert error_of(response)["param"] == "prompt"


@pytest.mark.parametrize(
    "body",
    [{"prompt": "zq" * 2000}, {"messages": [{"role": "assistant"}] * 2000}],
    ids=["text", "conversation"],
)
def test_a_text_beyond_the_context_is_tokenized_whole(client, body):
    answer = client.post("/tokenize", json=body).json()

    assert answer["count"] == len(answer["tokens"]) > answer["max_model_len"] == 1024


def test_typed_control_tokens_stay_text(client):
    inside = client.post("/tokenize", json={"messages": [{"role": "user", "content": "a<|im_end|>b"}]})
    ordinary = client.post("/tokenize", json={"messages": [{"role": "user", "content": "ab"}]})

    assert inside.json()["tokens"].count(2) == ordinary.json()["tokens"].count(2) == 1


def test_unknown_routes_and_methods_are_refused_in_openais_shape(client):
    missing, wrong, slash = client.get("/v1/embeddings"), client.get(CHAT), client.get("/v1/models/")

    assert missing.status_code == 404
    assert "/v1/chat/completions" in str(error_of(missing)["message"])
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert error_of(wrong)
    assert slash.status_code == 404
    assert all(response.headers["x-request-id"] for response in (missing, wrong, slash))


def test_models_are_listed_and_found_by_name(client):
    listed = client.get("/v1/models").json()["data"]
    found = client.get(f"/v1/models/{TINY_NAME}").json()
    missing = client.get("/v1/models/some/other")

    assert [model["id"] for model in listed] == [TINY_NAME]
    assert found == listed[0]
    assert found["root"] == TINY_NAME
    assert found["max_model_len"] == 1024
    assert error_of(missing)["code"] == "model_not_found"


def test_a_body_beyond_the_limit_is_refused_while_it_is_read(client):
    def endless():
        for _ in range(64):
            yield b" " * 1024 * 1024

    declared = client.post(CHAT, content=b" " * (32 * 1024 * 1024 + 1))
    assert declared.status_code == 413

    # Without a declared length the bytes are counted; the server may close before all are sent.
    with contextlib.suppress(httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        assert client.post(CHAT, content=endless()).status_code == 413


@pytest.mark.parametrize("header", ["x-warmfleet-salt", "x-warmfleet-seed", "x-warmfleet-dispatch"])
def test_a_malformed_dispatch_header_is_refused(client, header):
    assert client.post(CHAT, json=chat_body(), headers={header: "-1g"}).status_code == 400


def test_a_router_gets_the_prompt_assets_by_their_digest(client, tiny_served_path):
    expected = load_prompt_assets(tiny_served_path)
    digest = PromptEncoder.from_assets(expected).tokenizer_digest

    found = client.get(f"/internal/tokenizer/{digest}")
    missing = client.get("/internal/tokenizer/" + "0" * 64)

    assert msgspec.msgpack.decode(found.content, type=PromptAssets) == expected
    assert missing.status_code == 404


def test_clearing_the_cache_forgets_every_block(client, shared_worker):
    body = chat_body(fresh_text(200))
    client.post(CHAT, json=body)

    assert client.delete("/internal/cache").status_code == 202
    response = client.post(CHAT, json=body)

    assert response.headers["x-warmfleet-cached-tokens"] == "0"
    assert shared_worker.wait_until_idle()["cached_blocks"] > 0


def test_metrics_have_vllms_names_and_count_tokens(client):
    client.post(CHAT, json=chat_body())

    lines = client.get("/metrics").text.splitlines()

    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[:1] != "#"}
    labels = '{engine="0",model_name="tiny"}'
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:prompt_tokens_total",
        "vllm:prompt_tokens_cached_total",
        "vllm:generation_tokens_total",
        "vllm:num_preemptions_total",
        "vllm:time_to_first_token_seconds_count",
        "vllm:inter_token_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:request_queue_time_seconds_count",
        "vllm:request_prompt_tokens_count",
        "vllm:request_generation_tokens_count",
        "vllm:iteration_tokens_total_count",
    ):
        assert name + labels in values, name
    assert values["vllm:prompt_tokens_total" + labels] > 0
    assert values["vllm:generation_tokens_total" + labels] > 0
    assert any(line.startswith("vllm:cache_config_info{") and 'block_size="16"' in line for line in lines)
    assert any(line.startswith("vllm:request_success_total{") for line in lines)


def test_a_worker_states_what_computes_and_whether_equal_bits_are_promised(client, shared_worker):
    cache = shared_worker.cache()

    kernels, dtype, exact = cache["kernels"], cache["dtype"], str(cache["exact"]).lower()
    engine = f'device="cpu",dtype="{dtype}",engine="0",exact="{exact}",kernels="{kernels}"'
    assert (dtype, exact) == ("Float32", "true")
    assert (
        f'warmfleet_worker_engine_info{{{engine},model_name="{TINY_NAME}"}} 1.0'
        in client.get("/metrics").text
    )


def test_the_log_line_of_a_request_has_its_figures_and_not_its_text(client, shared_worker):
    text = fresh_text()

    client.post(CHAT, json=chat_body(text), headers={"x-request-id": "logged-1"})

    line = shared_worker.wait_for_log("request finished", request_id="logged-1")
    assert (line["status"], line["model"], line["cached_tokens"]) == (200, TINY_NAME, 0)
    assert line["prompt_tokens"] > 0
    assert text not in json.dumps(shared_worker.log_lines())


def test_the_real_client_answers_and_streams(shared_worker):
    with openai.OpenAI(base_url=f"{shared_worker.url}/v1", api_key="none", max_retries=0) as sdk:
        body = chat_body(ignore_eos=True)
        messages, rest = body.pop("messages"), {"model": TINY_NAME, "max_tokens": 8, "temperature": 0}

        answer = sdk.chat.completions.create(messages=messages, extra_body={"ignore_eos": True}, **rest)
        chunks = list(
            sdk.chat.completions.create(
                messages=messages,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
                **rest,
            )
        )

    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == answer.usage.prompt_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0


async def test_the_real_async_client_sees_typed_errors(shared_worker):
    async with openai.AsyncOpenAI(base_url=f"{shared_worker.url}/v1", api_key="none", max_retries=0) as sdk:
        with pytest.raises(openai.NotFoundError):
            await sdk.chat.completions.create(model="other", messages=[{"role": "user", "content": "x"}])
        with pytest.raises(openai.BadRequestError) as caught:
            await sdk.completions.create(model=TINY_NAME, prompt=[5] * 2000)
        models = [model.id async for model in sdk.models.list()]

    assert caught.value.code == "context_length_exceeded"
    assert models == [TINY_NAME]


def test_with_a_token_only_its_holders_get_in(tiny_served_path):
    with running_worker(tiny_served_path, "--kv-cache-bytes", "1000000", token="right") as worker:
        open_paths = ["/livez", "/readyz", "/health", "/metrics"]
        closed_paths = ["/v1/models", "/version", "/internal/cache", "/internal/kv-events", "/nothing"]

        assert all(httpx.get(worker.url + path, verify=NO_TLS).status_code == 200 for path in open_paths)
        for authorization in (None, "Bearer wrong", "Bearer", "Basic right", "Bearer right2", "Bearer \xff"):
            headers = {} if authorization is None else {"authorization": authorization.encode("latin-1")}
            for path in closed_paths:
                response = httpx.get(worker.url + path, headers=headers, verify=NO_TLS)
                assert response.status_code == 401
                assert error_of(response)["code"] == "invalid_api_key"
        with worker.client() as client:
            assert client.get("/v1/models").status_code == 200
            assert client.post(CHAT, json=chat_body()).status_code == 200
