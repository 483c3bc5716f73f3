"""What vLLM refuses ends one request, or nothing: its errors have no base in common with Python's own."""

import asyncio
import sys
from http import HTTPStatus
from types import ModuleType, SimpleNamespace

import pytest

from warmfleet_contracts.errors import ContractError
from warmfleet_testing.vllm.loop_runs import add, hashes, running
from warmfleet_testing.vllm.stand_in import StandInVllm, facts
from warmfleet_worker.engine.messages import AbortSequence, ClearCache
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.vllm_engine import refusals as refusals_module
from warmfleet_worker.vllm_engine import reports as reports_module
from warmfleet_worker.vllm_engine.llm import VllmEngine
from warmfleet_worker.vllm_engine.load import StepStatistics
from warmfleet_worker.vllm_engine.outputs import (
    BusyError,
    ClearDeclinedError,
    RefusedRequestError,
    VllmDiedError,
)
from warmfleet_worker.vllm_engine.refusals import request_error


class VLLMValidationError(Exception):
    """As vLLM's: no `ValueError`."""


class QueueOverflowError(Exception):
    http_status = HTTPStatus.SERVICE_UNAVAILABLE


class EngineDeadError(Exception):
    pass


class AsyncLLM:
    """Raises what it is given, for requests and clears."""

    def __init__(self, error, *, errored=False):
        self.error = error
        self.errored = errored

    async def generate(self, *_, **__):
        if self.error:
            raise self.error
        yield

    async def reset_prefix_cache(self, **_):
        if self.error:
            raise self.error
        return False


@pytest.fixture
def engine_of(monkeypatch):
    """An adapter of the given `AsyncLLM`, with just what it imports for a request."""
    members = {
        "vllm": {"SamplingParams": lambda **fields: fields},
        "vllm.inputs": {"tokens_input": lambda *_, **__: None},
        "vllm.sampling_params": {"RequestOutputKind": SimpleNamespace(DELTA=1)},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.exceptions": {"EngineDeadError": EngineDeadError},
    }
    for name, values in members.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)

    def made(llm):
        engine = object.__new__(VllmEngine)
        engine._llm = llm
        return engine

    return made


@pytest.mark.parametrize(
    ("llm", "raised"),
    [
        (AsyncLLM(VLLMValidationError("stop_token_ids")), RefusedRequestError),
        (AsyncLLM(ValueError("stop_token_ids")), RefusedRequestError),
        (AsyncLLM(QueueOverflowError("stop_token_ids are many")), BusyError),
        (AsyncLLM(EngineDeadError("stop_token_ids")), VllmDiedError),
        (AsyncLLM(KeyError("stop_token_ids"), errored=True), VllmDiedError),
    ],
    ids=["of vLLM", "of Python", "of the moment", "of the core", "of a dead core"],
)
async def test_only_a_dead_core_is_more_than_the_end_of_a_request(engine_of, llm, raised):
    with pytest.raises(raised, match="stop_token_ids"):
        await anext(engine_of(llm).generate("1", [1], None, {}, 0))


@pytest.mark.parametrize(
    ("llm", "raised"),
    [
        (AsyncLLM(None), ClearDeclinedError),
        (AsyncLLM(RuntimeError("Failed to reset KV cache")), ClearDeclinedError),
        (AsyncLLM(EngineDeadError()), VllmDiedError),
        (AsyncLLM(RuntimeError(), errored=True), VllmDiedError),
    ],
)
async def test_a_clear_that_vllm_declines_is_no_death(engine_of, llm, raised):
    with pytest.raises(raised):
        await engine_of(llm).clear_cache()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("top_k must be 0 or 1 (parameter=top_k)", "top_k must be 0 or 1 (parameter=top_k)"),
        ("first line\n  File x, line 3", "first line"),
        ("see https://docs.vllm.ai/en/latest and/or ask", "see https://docs.vllm.ai/en/latest and/or ask"),
        ("a" * 1000, "a" * 300),
        ("", "vLLM does not compute this request"),
        ("cannot open '/models/secret/config.json'", "vLLM does not compute this request"),
        ("Traceback (most recent call last):", "vLLM does not compute this request"),
        ("<object at 0x7f00aabbccdd>", "vLLM does not compute this request"),
    ],
)
def test_a_client_reads_of_a_refusal_what_is_about_the_request(text, shown):
    assert str(request_error(VLLMValidationError(text))) == shown


@pytest.mark.parametrize(
    ("error", "reason"), [(RefusedRequestError("no"), "refused"), (BusyError("no"), "busy")]
)
async def test_a_refused_request_ends_with_its_kind_and_the_others_go_on(error, reason):
    class Refusing(StandInVllm):
        async def generate(self, request_id, *arguments):
            if request_id == "1":
                raise error
            async for output in super().generate(request_id, *arguments):
                yield output

    async with running(Refusing()) as (engine, server, _, _):
        engine.apply(add([5] * 40, 1))
        engine.apply(add([6] * 40, 2))
        await server.ended(1, 2)
        assert (server.finish(1), server.updates[1][0].error) == (reason, "no")
        assert server.finish(2) == "length"


async def test_a_request_that_fails_after_its_first_token_is_not_refused():
    class Failing(StandInVllm):
        async def generate(self, request_id, *arguments):
            async for output in super().generate(request_id, *arguments):
                yield output
                if request_id == "1":
                    raise RefusedRequestError("no")

    async with running(Failing()) as (engine, server, _, _):
        engine.apply(add([5] * 40, 1))
        await server.ended(1)
        assert server.finish(1) == "error"


async def test_what_can_never_be_computed_is_refused_and_what_is_too_much_now_is_not():
    async with running() as (engine, server, _, _):
        engine.apply(add([10**6], 1))
        engine.apply(add([5], *range(2, 5000)))
        await server.ended(1, 2)
        assert (server.finish(1), server.finish(2)) == ("refused", "busy")


async def test_scores_of_a_prompt_that_vllm_has_no_memory_for_are_refused_with_both_sizes():
    scored = SamplingParameters(max_output_tokens=1, logprobs=0, prompt_logprobs=0)
    model = facts(max_batched_tokens=1200, vocabulary_size=2**17, most_scored_tokens=1024)
    async with running(StandInVllm(model)) as (engine, server, _, _):
        engine.apply(add([5] * 1025, 1, sampling=scored, may_read_cache=False))
        engine.apply(add([5] * 1024, 2, sampling=scored, may_read_cache=False))
        engine.apply(add([5] * 1500, 3))
        await server.ended(1, 2, 3)

        assert [server.finish(one) for one in (1, 2, 3)] == ["refused", "length", "length"]
        assert "take 1025 MiB at once, this engine has 1024 MiB" in server.updates[1][0].error


async def test_a_declined_clear_is_asked_for_again_while_routers_see_an_empty_cache(monkeypatch):
    monkeypatch.setattr(refusals_module, "CLEAR_PAUSES_SECONDS", (0.01, 0.02))
    prompt = list(range(64))

    class Declining(StandInVllm):
        declined = 0

        async def clear_cache(self):
            if self.declined:
                self.declined -= 1
                raise ClearDeclinedError("blocks are in use")
            await super().clear_cache()

    async with running(Declining()) as (engine, server, vllm, following):
        engine.apply(add(prompt, 1))
        await server.ended(1)
        vllm.declined = 2
        engine.apply(ClearCache())
        await server.until(lambda: not len(server.mirror))
        engine.apply(add(prompt, 2))  # hits what is still there, and announces nothing
        await server.ended(2)
        assert not len(server.mirror)
        await server.until(lambda: vllm.clears == 2)
        engine.apply(add(prompt, 3))
        await server.ended(3)
        assert server.mirror.holds_all(hashes(prompt))

        # when it declines each time
        vllm.declined = 3
        engine.apply(ClearCache())
        with pytest.raises(ClearDeclinedError):
            await asyncio.wait_for(following, 10)


async def test_long_scores_of_prompts_that_end_in_one_step_are_more_than_one_report(monkeypatch):
    monkeypatch.setattr(reports_module, "MAX_MESSAGE_BYTES", 4 * 3000)
    scored = SamplingParameters(max_output_tokens=1, logprobs=0, prompt_logprobs=0)
    async with running(steps=False) as (engine, server, vllm, _):
        for one in range(1, 5):
            engine.apply(add([one] * 401, one, sampling=scored, may_read_cache=False))
        await asyncio.sleep(0.02)
        vllm.step()
        await server.ended(1, 2, 3, 4)

        assert [len(server.updates[one][0].prompt_logprobs.values) for one in range(1, 5)] == [1600] * 4
        assert max(len(report.updates) for report in server.reports) == 2


async def test_a_report_that_cannot_be_sent_ends_the_engine():
    async with running() as (engine, _, _, following):

        def refuse(_):
            raise ContractError("a message of 70000000 bytes")

        engine._send = refuse
        engine.apply(add([5] * 40, 1))
        with pytest.raises(ContractError):
            await asyncio.wait_for(following, 10)


async def test_an_abort_of_the_last_sequence_announces_no_block_before_its_step_has_ended():
    prompt = list(range(65))
    async with running(StandInVllm(facts(steps_ahead=1)), steps=False) as (engine, server, vllm, _):
        # given: a step has ended, and another one is in flight
        engine.apply(add(prompt, 1))
        await vllm.waiting(1)
        vllm.step()
        vllm.step()
        await vllm.events_are_read()
        assert not len(server.mirror)

        # when
        engine.apply(AbortSequence(sequence_id=1))
        engine._apply_events()
        await asyncio.sleep(0.02)

        # then
        assert not len(server.mirror)
        vllm.steps.put_nowait(StepStatistics())
        await server.until(lambda: server.mirror.holds_all(hashes(prompt)))
