"""The real chat model behind the router, asked by the clients that users have."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from warmfleet_contracts.prompts.chat_message import ChatMessage
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_testing.engine.catalog_model import CATALOG_MODEL_NAME, pulled_catalog_model
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.router.whole_fleet import WholeFleet, whole_fleet
from warmfleet_worker.model_store.assets import load_prompt_assets

pytestmark = pytest.mark.model

ANSWER_TOKENS = 64
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TOPICS = (
    "rain",
    "bread",
    "copper",
    "the moon",
    "a violin",
    "salt",
    "sleep",
    "maps",
    "the number seven",
    "ice",
)
OPENINGS = ("Tell me one fact about {}.", "Write a short sentence with the word {}.")
PROMPTS = [opening.format(topic) for topic in TOPICS for opening in OPENINGS]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeFleet]:
    with whole_fleet(
        tmp_path_factory.mktemp("home"),
        pulled_catalog_model(),
        served_name=CATALOG_MODEL_NAME,
        kv_cache="128Mi",
        max_model_length_tokens=2048,
    ) as running:
        yield running


def body(**fields: object) -> dict[str, object]:
    return {"model": CATALOG_MODEL_NAME, "messages": QUESTION, "temperature": 0, **fields}


def test_curl_gets_the_capital_of_france(fleet: WholeFleet) -> None:
    url = f"{fleet.url}/v1/chat/completions"
    command = ["curl", "-sS", "-f", url, "-H", "content-type: application/json", "-d", json.dumps(body())]
    answer = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_httpx_gets_the_capital_of_france(fleet: WholeFleet) -> None:
    answer = (
        httpx.post(f"{fleet.url}/v1/chat/completions", json=body(), timeout=60, verify=NO_TLS)
        .raise_for_status()
        .json()
    )
    assert "Paris" in answer["choices"][0]["message"]["content"]


def test_the_openai_client_gets_the_capital_of_france_plain_and_streamed(fleet: WholeFleet) -> None:
    client = openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="unused", max_retries=0)
    plain = client.chat.completions.create(**body())
    stream = client.chat.completions.create(**body(stream=True, stream_options={"include_usage": True}))
    chunks = list(stream)

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text
    assert text == plain.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens
    assert [model.id for model in client.models.list()] == [CATALOG_MODEL_NAME]


def test_a_second_question_lands_on_the_worker_that_holds_its_prefix(fleet: WholeFleet) -> None:
    # Given a long instruction that one worker has just read
    instruction = {"role": "system", "content": "You answer in one short sentence. " * 40}

    def ask(question: str) -> httpx.Response:
        messages = [instruction, {"role": "user", "content": question}]
        fields = body(messages=messages, max_tokens=16)
        return httpx.post(
            f"{fleet.url}/v1/chat/completions", json=fields, timeout=60, verify=NO_TLS
        ).raise_for_status()

    first = ask("What is the capital of Italy?")
    fleet.wait_until_quiet()

    # When another question follows the same instruction
    second = ask("How many legs has a spider?")

    # Then it went to that worker, and usage counts what was not computed again
    assert fleet.decision(second)["endpoint"] == fleet.decision(first)["endpoint"]
    assert first.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 256


def test_twenty_answers_have_the_token_ids_of_transformers(fleet: WholeFleet) -> None:
    """Greedy, float32, 64 tokens each, all at once, so that the workers compute them in batches.

    Transformers reads each prompt with our answer behind it. If its first choice after every prefix is our
    next id, then its own greedy decoding gives our ids, by induction over the answer.
    """
    folder = pulled_catalog_model()
    encoder = PromptEncoder.from_assets(load_prompt_assets(folder))
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    prompts_ids = [encoder.encode_chat([ChatMessage(role="user", content=prompt)]) for prompt in PROMPTS]

    def answered(prompt_ids: Sequence[int]) -> list[int]:
        fields = {
            "model": CATALOG_MODEL_NAME,
            "prompt": prompt_ids,
            "temperature": 0,
            "max_tokens": ANSWER_TOKENS,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        answer = (
            httpx.post(f"{fleet.url}/v1/completions", json=fields, timeout=120, verify=NO_TLS)
            .raise_for_status()
            .json()
        )
        token_ids: list[int] = answer["choices"][0]["token_ids"]
        return token_ids

    with ThreadPoolExecutor(len(PROMPTS)) as askers:
        answers_ids = list(askers.map(answered, prompts_ids))

    differing = []
    for prompt, prompt_ids, answer_ids in zip(PROMPTS, prompts_ids, answers_ids, strict=True):
        with torch.inference_mode():
            logits = oracle(torch.tensor([[*prompt_ids, *answer_ids]])).logits[0]
        expected_ids = logits[len(prompt_ids) - 1 : -1].argmax(dim=-1).tolist()
        assert len(answer_ids) == ANSWER_TOKENS
        if answer_ids != expected_ids:
            differing.append(prompt)
    assert len(PROMPTS) == 20
    assert not differing
