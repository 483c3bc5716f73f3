"""What the router predicts is what the worker finds: one hash, one count, in every request."""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from warmfleet_testing.engine.worker_process import tiny_served_model
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.processes.tested_engines import EngineUnderTest
from warmfleet_testing.router.whole_fleet import WholeFleet, whole_fleet

REQUESTS = 500
PREFIXES = 60
MOST_TOKENS = 128
"""Of a prefix."""
SCORED_RATIO = 0.1
"""Of the token-id prompts: their own log probabilities are asked for."""
WORDS = ("warm", "cold", "block", "table", "prefix", "seat", "lease", "router", "cache", "page", "hash")


@pytest.fixture(scope="module")
def fleet(engine: EngineUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeFleet]:
    home = tmp_path_factory.mktemp("home")
    model = tiny_served_model(home / "model", **engine.model_fields)
    # On each of two workers 384 blocks of 16 tokens, or 96 of 32 with vLLM, whose heads have twice the
    # dimension: too few for all that is asked, so that blocks are evicted.
    with whole_fleet(home, model, kv_cache="3Mi", **engine.fleet) as running:
        yield running


class Workload:
    """500 requests: token-id prompts at block edges, some of them scored; chats, some that feed back."""

    def __init__(self, block_tokens: int) -> None:
        self._draw = random.Random(11)
        self._block_tokens = block_tokens
        self._prefixes = [
            [
                self._draw.randrange(256)
                for _ in range(block_tokens * self._draw.randint(1, MOST_TOKENS // block_tokens))
            ]
            for _ in range(PREFIXES)
        ]
        self._systems = [" ".join(self._draw.choices(WORDS, k=30)) for _ in range(PREFIXES)]
        self._conversations: list[list[dict[str, str]]] = []
        self.kinds: Counter[str] = Counter()
        self.used_prefixes: set[object] = set()

    def next_request(self) -> tuple[str, dict[str, Any]]:
        """Path and body."""
        kind = self._draw.choices(("edge", "chat", "fed back"), weights=(40, 30, 30))[0]
        if kind == "fed back" and not self._conversations:
            kind = "chat"
        self.kinds[kind] += 1
        limits = {"model": "tiny", "temperature": 0.7, "max_tokens": self._draw.randint(1, 24)}
        if kind == "edge":
            prefix = self._draw.choice(self._prefixes)
            self.used_prefixes.add(tuple(prefix))
            tail = self._block_tokens * self._draw.randint(0, 3) + self._draw.choice((-1, 0, 1))
            prompt = prefix[:tail] if tail < 0 else prefix + [self._draw.randrange(256) for _ in range(tail)]
            if self._draw.random() < SCORED_RATIO:
                self.kinds["scored"] += 1
                return "/v1/completions", {**limits, "prompt": prompt, "echo": True, "logprobs": 1}
            return "/v1/completions", {**limits, "prompt": prompt}
        if kind == "chat":
            system = self._draw.choice(self._systems)
            self.used_prefixes.add(system)
            question = " ".join(self._draw.choices(WORDS, k=self._draw.randint(1, 12)))
            messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        else:
            messages = self._conversations.pop()
        return "/v1/chat/completions", {**limits, "messages": messages}

    def take_answer(self, body: dict[str, Any], answer: dict[str, Any]) -> None:
        """Let a later request continue this conversation, as long as it stays short."""
        if "messages" in body and len(body["messages"]) < 6:
            reply = {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
            follow_up = {"role": "user", "content": " ".join(self._draw.choices(WORDS, k=4))}
            self._conversations.append([*body["messages"], reply, follow_up])


def test_on_a_quiet_fleet_every_prediction_comes_true(engine: EngineUnderTest, fleet: WholeFleet) -> None:
    workload = Workload(engine.block_tokens)
    hits = 0
    with httpx.Client(base_url=fleet.url, timeout=60, verify=NO_TLS) as client:
        for number in range(REQUESTS):
            path, body = workload.next_request()
            response = client.post(path, json=body)
            assert response.status_code == 200, response.text
            answer = response.json()
            workload.take_answer(body, answer)
            decision = fleet.decision(response)

            prompt_tokens = answer["usage"]["prompt_tokens"]
            cached_tokens = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            facts = f"request {number}: {decision}"
            assert decision["mode"] == "precise", facts
            assert decision["retries"] == 0, facts
            assert decision["prompt_tokens"] == decision["actual_prompt_tokens"] == prompt_tokens, facts
            has_block = prompt_tokens >= engine.block_tokens
            assert decision["last_block_matches"] is (True if has_block else None), facts
            assert decision["predicted_cached_tokens"] == decision["actual_cached_tokens"], facts
            assert decision["actual_cached_tokens"] == cached_tokens, facts
            assert decision["difference"] == "none", facts
            hits += cached_tokens > 0
            fleet.wait_until_quiet()

    # And the workload was what it claims to be
    assert len(workload.used_prefixes) >= 50
    assert workload.kinds["fed back"] >= 0.3 * REQUESTS * 0.8
    assert workload.kinds["scored"] > 10
    assert hits > 100
    evicted = sum(worker_evictions(fleet))
    assert evicted > 0


def test_a_prediction_is_kept_before_anything_is_dispatched(fleet: WholeFleet) -> None:
    """While the worker still computes, the decision can be read, and it already holds what it expects."""
    prompt = [number % 251 for number in range(300)]
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 200, "ignore_eos": True, "stream": True}
    # More than the sockets on the way hold: it cannot end while the client does not read.
    body |= {"n": 8, "logprobs": 20}
    with (
        httpx.Client(base_url=fleet.url, timeout=60, verify=NO_TLS) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        chunks = (
            response.iter_raw()
        )  # closed when dropped, which the router would take for a client that left
        next(chunks)
        decision = fleet.decision(response)
        assert decision["outcome"] == "in flight"
        assert decision["predicted_cached_tokens"] is not None
        assert decision["dispatched_after_ms"] >= decision["decision_ms"]


def worker_evictions(fleet: WholeFleet) -> Iterator[float]:
    for endpoint in fleet.endpoints().values():
        for line in httpx.get(f"{endpoint['url']}/metrics", verify=NO_TLS).text.splitlines():
            if line.startswith("warmfleet_worker_evicted_blocks_total"):
                yield float(line.rpartition(" ")[2])
