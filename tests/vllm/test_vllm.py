"""The engine process with the vLLM that `make vllm` installed: `make check-vllm`, on two cores without a GPU.

One worker serves all tests that ask one, because vLLM takes a minute or more to start.
"""

import json
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.router.whole_fleet import WholeFleet, wait_for

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
SCRIPTS = ROOT / "tests" / "vllm"
START_SECONDS = 1200
MODEL = "smollm2"
BLOCK_TOKENS = 32
POOL_REQUESTS = 2000


def complete(client: httpx.Client, prompt: list[int], **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
    answer: dict[str, Any] = client.post("/v1/completions", json=body).raise_for_status().json()
    return answer


def run_with_vllm(script: str, *arguments: str) -> dict[str, Any]:
    """The JSON that a script in this folder writes last, in vLLM's interpreter."""
    finished = subprocess.run(
        [PYTHON, SCRIPTS / script, *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=1500,
        cwd=ROOT,
    )
    found: dict[str, Any] = json.loads(finished.stdout[finished.stdout.rindex("\n{") :])
    return found


def test_the_installed_vllm_has_the_interface_that_was_recorded() -> None:
    recorded = json.loads((ROOT / "tests/worker/vllm_engine/recorded_interface.json").read_text())

    installed = run_with_vllm("interface.py")

    # Any patch of it: versions.py accepts them alike.
    assert installed.pop("version").split(".")[:2] == recorded.pop("version").split(".")[:2]
    assert installed == recorded


def test_vllms_parser_takes_a_flag_with_the_value_of_its_field_and_none_of_data_parallelism() -> None:
    found = run_with_vllm("parser.py")

    assert found["equal"]["--served-model-name=qwen"] == ""
    assert len(found["equal"]) > 20
    assert {flag: answer for flag, answer in found["equal"].items() if answer} == {}
    assert len(found["parallel"]) > 5
    assert all("contradicts warmfleet" in answer for answer in found["parallel"].values()), found["parallel"]


def test_the_mirror_is_the_pool_of_the_engine_core_after_thousands_of_requests_with_evictions(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    # The pool holds what follows from the tokens alone. vLLM has heads of 32 on CPUs.
    model = tiny_model_folder("llama", tmp_path / "model", vocab_size=9000, head_dim=32)

    found = run_with_vllm("pool.py", str(model), str(POOL_REQUESTS))

    measured(f"event mirror beside the engine core's own pool: {found}")
    assert found["differing_blocks"] == 0, found
    assert found["prompt_blocks_never_stored"] == 0, found
    assert found["evicted_blocks"] > POOL_REQUESTS, found
    assert found["cached_tokens"] > 0, found


def test_events_beyond_what_vllm_keeps_are_reported_as_lost_and_fewer_are_replayed() -> None:
    found = run_with_vllm("lost_events.py")

    # then: nothing between the two that were missed and the first that came, or one gap and what came after
    assert found["few"] == [float(number) for number in range(len(found["few"]))]
    assert found["many"][0] == "lost"
    assert found["many"].count("lost") == 1
    assert all(number >= 10 * found["kept"] for number in found["many"][1:])


def test_a_chat_is_answered(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    body = {"model": MODEL, "messages": messages, "temperature": 0}

    answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()

    [choice] = answer["choices"]
    assert choice["message"]["content"] == "The capital of France is Paris."
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.5, "seed": 1},
        {"logit_bias": {"100": 100}},
        {"repetition_penalty": 5.0},
        {"frequency_penalty": 2.0},
        {"presence_penalty": 2.0},
        {"temperature": 1.5, "seed": 1, "top_k": 2},
        {"temperature": 1.5, "seed": 1, "top_p": 0.1},
        {"temperature": 1.5, "seed": 1, "min_p": 0.9},
        {"max_tokens": 3},
    ],
    ids="-".join,
)
def test_a_sampling_parameter_changes_the_answer_and_the_same_one_repeats_it(
    client: httpx.Client, fields: dict[str, Any]
) -> None:
    base = {name: value for name, value in fields.items() if name in {"temperature", "seed"}}
    others = {} if base == fields else base
    prompt = list(range(2000, 2040))
    limit = {"max_tokens": 24, "ignore_eos": True}

    plain = complete(client, prompt, **{**limit, **others})["choices"]
    changed = complete(client, prompt, **{**limit, **fields})["choices"]

    assert changed != plain
    assert complete(client, prompt, **{**limit, **fields})["choices"] == changed


def test_seeded_prompts_that_a_step_computes_in_part_are_answered(client: httpx.Client) -> None:
    """Three of 1,400 tokens at once: a step of vLLM takes 2,048."""

    def answer(number: int) -> dict[str, Any]:
        prompt = [(7 * position + 31 * number) % 9000 for position in range(1400)]
        return complete(client, prompt, max_tokens=4, ignore_eos=True, temperature=1, seed=number)

    with ThreadPoolExecutor() as threads:
        answers = list(threads.map(answer, range(3)))

    assert [one["usage"]["completion_tokens"] for one in answers] == [4, 4, 4]


def test_stop_tokens_least_lengths_and_log_probabilities_are_honoured(client: httpx.Client) -> None:
    prompt = list(range(2000, 2040))
    free = complete(client, prompt, max_tokens=6, ignore_eos=True, return_token_ids=True, logprobs=2)
    [choice] = free["choices"]
    ids = choice["token_ids"]
    assert len(choice["logprobs"]["token_logprobs"]) == len(ids) == 6

    stopped = complete(client, prompt, max_tokens=6, stop_token_ids=[ids[2]], return_token_ids=True)[
        "choices"
    ][0]

    assert stopped["finish_reason"] == "stop"
    assert stopped["token_ids"] == ids[: ids.index(ids[2]) + 1]


def test_vllms_own_metrics_stand_beside_ours_and_count_the_same_tokens(
    fleet: WholeFleet, client: httpx.Client
) -> None:
    before = {
        name: metric(fleet, name) for name in ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    }
    usage = complete(client, list(range(700, 740)), max_tokens=5, ignore_eos=True)["usage"]
    fleet.wait_until_quiet()

    assert metric(fleet, "vllm:prompt_tokens_total") - before["vllm:prompt_tokens_total"] == 40
    grown = metric(fleet, "vllm:generation_tokens_total") - before["vllm:generation_tokens_total"]
    assert grown == usage["completion_tokens"] == 5
    lines = metric_lines(fleet)
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(set(types)) == len(types)
    assert any(line.startswith("vllm:estimated_flops") and f'model_name="{MODEL}"' in line for line in lines)
    assert any(line.startswith("warmfleet_worker_kv_blocks{") for line in lines)


def test_a_prompt_is_predicted_to_take_a_part_of_the_time_that_it_takes(
    fleet: WholeFleet, client: httpx.Client
) -> None:
    """Were a step's time that of its sampling alone, routers would compute prefixes anew everywhere."""

    def answered(first: int) -> tuple[float, float]:
        body = {"model": MODEL, "prompt": list(range(first, first + 800)), "max_tokens": 1}
        begin = time.monotonic()
        answer = client.post("/v1/completions", json=body).raise_for_status()
        (candidate,) = fleet.decision(answer)["candidates"]
        return candidate["prefill_ms"] / 1e3, time.monotonic() - begin

    answered(2_000)
    fleet.wait_until_quiet()
    predicted_seconds, seconds = answered(10_000)

    assert predicted_seconds >= seconds / 4


def test_a_client_that_leaves_frees_its_blocks(fleet: WholeFleet, client: httpx.Client) -> None:
    body = {
        "model": MODEL,
        "prompt": list(range(900)),
        "max_tokens": 1000,
        "ignore_eos": True,
        "stream": True,
    }
    with client.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())

    def is_free() -> bool:
        [endpoint] = fleet.endpoints().values()
        return fleet.worker_cache(endpoint)["pinned_blocks"] == 0

    wait_for(is_free, "no block is held", seconds=60)
    fleet.wait_until_quiet()


def metric_lines(fleet: WholeFleet) -> list[str]:
    [endpoint] = fleet.endpoints().values()
    return httpx.get(f"{endpoint['url']}/metrics", timeout=30, verify=NO_TLS).text.splitlines()


def metric(fleet: WholeFleet, name: str) -> float:
    lines = metric_lines(fleet)
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))
