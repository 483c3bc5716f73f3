"""The adapter of vLLM's `AsyncLLM`, with a stand-in for the package: requests in, outputs and errors out."""

import asyncio
import json
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest

from warmfleet_testing.vllm import package as stand_ins
from warmfleet_testing.vllm.package import install
from warmfleet_testing.vllm.stand_in import BLOCK_TOKENS, facts
from warmfleet_testing.vllm.wire import Wire
from warmfleet_worker.settings import EngineSettings
from warmfleet_worker.vllm_engine import llm as adapter
from warmfleet_worker.vllm_engine.arguments import UnfitSettingsError
from warmfleet_worker.vllm_engine.llm import VllmEngine
from warmfleet_worker.vllm_engine.load import StepStatistics
from warmfleet_worker.vllm_engine.outputs import Output, RefusedRequestError, VllmDiedError
from warmfleet_worker.vllm_engine.scores import Score

RECORDED = json.loads((Path(__file__).parent / "recorded_interface.json").read_text())
SETTINGS = EngineSettings(model_path="/m", block_size_tokens=BLOCK_TOKENS, kv_cache_bytes=2**20)


@pytest.fixture
def package(monkeypatch):
    return install(monkeypatch, facts(), Wire())


def engine(settings=SETTINGS):
    return VllmEngine(settings, endpoint="ipc://events", replay_endpoint="ipc://replay")


async def outputs(vllm, package, prompt, *, salt=None, priority=0, **sampling):
    """All outputs of one request, with a step for each."""

    async def request():
        stream = vllm.generate("1", prompt, salt, {"max_tokens": 2, **sampling}, priority)
        return [output async for output in stream]

    running = asyncio.create_task(request())
    while not running.done():
        package.core.step()
        await asyncio.sleep(0.001)
    return running.result()


async def test_outputs_have_the_tokens_what_was_cached_and_why_they_ended(package):
    vllm, prompt = engine(), list(range(100))

    first = await outputs(vllm, package, prompt, salt="aa")
    again = await outputs(vllm, package, prompt, salt="aa")
    elsewhere = await outputs(vllm, package, prompt, salt="bb")

    assert first == [Output([100], 0, "", [], []), Output([101], 0, "length", [], [])]
    assert [output.cached_tokens for output in again] == [96, 0]
    assert elsewhere[0].cached_tokens == 0


async def test_a_cache_that_vllm_reports_nothing_of_counts_as_no_hit(package, monkeypatch):
    made = stand_ins.RequestOutput
    monkeypatch.setattr(stand_ins, "RequestOutput", lambda *fields: made(*fields[:2], None))

    assert [one.cached_tokens for one in await outputs(engine(), package, [1] * 40)] == [0, 0]


async def test_log_probabilities_come_without_texts_and_without_the_one_that_a_prompts_first_token_lacks(
    package,
):
    [output] = await outputs(engine(), package, [5, 6, 7], logprobs=1, prompt_logprobs=0, max_tokens=1)

    assert output.logprobs == [{8: Score(-0.5, 1), 7: Score(-1.5, 2)}]
    assert output.prompt_logprobs == [{6: Score(-2.0, 3)}, {7: Score(-2.0, 3)}]


async def test_a_request_goes_over_with_its_priority_and_its_sampling_parameters_as_increments(package):
    vllm = engine()
    await outputs(vllm, package, [1], priority=7, top_k=3)

    assert package.core.priorities == {"1": 7}
    [given] = package.core.given
    assert given["top_k"] == 3
    assert given["output_kind"] == "delta"


async def test_to_close_the_outputs_aborts_the_request(package):
    stream = engine().generate("1", [1], None, {"max_tokens": 9}, 0)
    first = asyncio.create_task(anext(stream))
    await package.core.waiting(1)
    package.core.step()
    await first

    await stream.aclose()

    assert not package.core.requests


async def test_a_step_is_reported_before_its_outputs_with_what_it_computed(package):
    vllm = engine()
    package.core.preempted_sequences = 4
    stream = vllm.generate("1", list(range(100)), None, {"max_tokens": 2}, 0)
    first = asyncio.create_task(anext(stream))
    await package.core.waiting(1)
    package.core.step()
    await first

    assert vllm.steps.get_nowait() == StepStatistics(
        running_sequences=1,
        used_ratio=4 / 64,
        prefill_tokens=100,
        decode_sequences=0,
        step_seconds=0.01,
        preempted_sequences=4,
    )
    package.core.step()
    second = vllm.steps.get_nowait()
    assert (second.running_sequences, second.prefill_tokens, second.decode_sequences) == (0, 0, 1)
    await stream.aclose()


async def test_statistics_of_no_step_are_a_load_and_nothing_without_them_is_reported(package):
    vllm = engine()
    [logger] = package.core.loggers

    logger.record(stand_ins.SchedulerStats(2, 0.25, None), None)
    logger.record(None, stand_ins.IterationStats())

    assert vllm.steps.get_nowait() == StepStatistics(running_sequences=2, used_ratio=0.25)
    assert vllm.steps.empty()


@pytest.mark.parametrize("sampling", [{}, {"temperature": -1}], ids=["by the core", "by its parameters"])
async def test_a_request_that_vllm_does_not_take_is_refused_with_its_reason(package, sampling):
    package.core.refusal = "no such thing"
    with pytest.raises(RefusedRequestError, match=r"no such thing|non-negative"):
        await outputs(engine(), package, [1], **sampling)


async def test_a_dead_engine_core_is_no_refusal(package):
    vllm = engine()
    stream = vllm.generate("1", [1], None, {"max_tokens": 2}, 0)
    first = asyncio.create_task(anext(stream))
    await package.core.waiting(1)
    assert not vllm.is_dead

    package.core.die()

    assert vllm.is_dead
    for call in (first, anext(vllm.generate("2", [1], None, {"max_tokens": 2}, 0)), vllm.clear_cache()):
        with pytest.raises(VllmDiedError):
            await call


async def test_the_cache_is_cleared_while_requests_run(package):
    vllm = engine()
    await outputs(vllm, package, [1] * 40)
    assert package.core.cached_copies

    await vllm.clear_cache()

    assert (package.core.clears, package.core.cached_copies) == (1, 0)


async def test_facts_are_those_of_the_loaded_model(monkeypatch):
    model = facts(
        50, max_model_length_tokens=700, max_batched_tokens=600, max_running_sequences=5, device="cuda",
        dtype="bfloat16", end_token_ids=[2, 3], window_tokens=128, steps_ahead=1,
        kv_bytes_per_token=2 * 3 * 2 * 16 * 4,
    )  # fmt: skip
    package = install(monkeypatch, model, Wire())
    package.is_cpu = False
    vllm = engine()

    assert vllm.facts == model

    config = package.made[0].vllm_config
    config.cache_config.cache_dtype = "fp8"
    assert vllm.facts.kv_bytes_per_token == model.kv_bytes_per_token / 4
    config.model_config.try_get_generation_config = dict
    assert vllm.facts.end_token_ids == [model.vocabulary_size - 1]
    config.model_config.try_get_generation_config = lambda: {"eos_token_id": [-1, 3, model.vocabulary_size]}
    assert vllm.facts.end_token_ids == [3]
    config.model_config.try_get_generation_config = dict
    config.model_config.hf_text_config = None
    assert vllm.facts.end_token_ids == []


async def test_the_engine_is_made_of_the_settings_the_users_flags_and_the_sockets_of_its_events(package):
    engine(msgspec.structs.replace(SETTINGS, extra_arguments=("--seed", "7")))

    [given] = [made.arguments.fields for made in package.made]
    assert (given["model"], given["seed"], given["enforce_eager"]) == ("/m", 7, True)
    events = given["kv_events_config"]
    assert (events.endpoint, events.replay_endpoint) == ("ipc://events", "ipc://replay")
    assert (events.publisher, events.enable_kv_cache_events) == ("zmq", True)


async def test_without_a_prefix_cache_there_are_no_events(package):
    engine(EngineSettings(model_path="/m", block_size_tokens=BLOCK_TOKENS, prefix_caching=False))
    assert package.made[0].arguments.fields["kv_events_config"] is None


@pytest.mark.parametrize("is_cpu", [True, False])
async def test_a_cpu_whose_memory_does_not_hold_the_cache_is_refused(package, monkeypatch, is_cpu):
    monkeypatch.setattr(adapter, "memory_limit_bytes", lambda: 2**19)
    package.is_cpu = is_cpu
    if is_cpu:
        with pytest.raises(UnfitSettingsError, match="run out of memory"):
            engine()
    else:
        engine()


async def test_metrics_are_vllms_and_none_of_its_process(package):
    text = engine().metrics()
    assert b"vllm:num_requests_running 3.0" in text
    assert b"process_open_fds" not in text


async def test_a_shut_down_engine_is_let_go(package):
    vllm = engine()
    vllm.shutdown()
    assert package.made[0].has_shut_down
    assert not hasattr(vllm, "_llm")


def test_the_stand_ins_structures_have_fields_that_vllms_have():
    for name in ("CompletionOutput", "SchedulerStats", "SchedulerIterationDetails", "Logprob"):
        made = {field.name for field in fields(getattr(stand_ins, name))}
        assert made <= set(RECORDED["structures"][name]), name
