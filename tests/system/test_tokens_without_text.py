"""A router times a stream by its tokens, also by those without text: in front of a real worker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from warmfleet_testing.engine.tiny_tokenizer import TINY_CONTROL_TOKENS
from warmfleet_testing.engine.worker_process import TINY_NAME, running_worker, tiny_served_model
from warmfleet_testing.router.router_process import RouterProcess, router_process
from warmfleet_testing.router.watched_fleet import wait_until

LAYERS = 48
# Only this token is ever chosen, and it has no text.
WITHOUT_TEXT = {"logit_bias": {str(TINY_CONTROL_TOKENS.index("<|im_start|>")): 100}, "ignore_eos": True}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of so many layers that a step takes longer than what stands between it and the client."""
    return tiny_served_model(tmp_path_factory.mktemp("model"), num_hidden_layers=LAYERS)


@pytest.fixture(scope="module")
def router(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    """In front of one worker."""
    with (
        running_worker(model_path, "--uid", "w", "--kv-cache-bytes", "16000000") as worker,
        router_process({"w": worker}, tmp_path_factory.mktemp("home")) as running,
    ):
        yield running


def newest_decision(router: RouterProcess) -> dict[str, Any]:
    with router.client() as client:
        decision: dict[str, Any] = client.get("/internal/decisions?limit=1").json()["decisions"][0]
    return decision


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/completions", {"prompt": ["hello", "world"], "n": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "n": 2}),
    ],
)
def test_a_stream_of_tokens_without_text_is_timed_by_its_tokens(
    router: RouterProcess, path: str, fields: dict[str, Any]
) -> None:
    body = {"model": TINY_NAME, "stream": True, "max_tokens": 400, **WITHOUT_TEXT, **fields}

    with router.client() as client:
        assert client.post(path, json=body).text.endswith("data: [DONE]\n\n")
    wait_until(lambda: newest_decision(router)["outcome"] == "completed", lambda: newest_decision(router))
    decision = newest_decision(router)

    # The first token is one of hundreds, and most of them arrive by themselves.
    assert decision["first_byte_after_ms"] < decision["total_ms"] / 2
    assert decision["output_tokens"] > 200
