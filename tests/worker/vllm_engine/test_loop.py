"""The engine loop with a stand-in for vLLM: messages in, reports out, vLLM's blocks under our hashes."""

import asyncio

import pytest

from warmfleet_testing.vllm.loop_runs import add, hashes, running
from warmfleet_testing.vllm.stand_in import BLOCK_TOKENS, VOCABULARY, StandInVllm, facts
from warmfleet_worker.engine.messages import (
    MAX_METRICS_BYTES,
    AbortSequence,
    ClearCache,
    Drain,
    PauseSequence,
    ReadMetrics,
)
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.vllm_engine import loop as loop_module
from warmfleet_worker.vllm_engine.loop import NoEventsError
from warmfleet_worker.vllm_engine.outputs import VllmDiedError


async def test_tokens_come_back_with_what_was_cached_and_the_hash_of_the_last_block():
    prompt = list(range(100, 200))
    async with running() as (engine, server, _, _):
        engine.apply(add(prompt, 1))
        await server.ended(1)
        engine.apply(add(prompt, 2))
        await server.ended(2)

    first, *later = server.updates[1]
    assert (first.cached_tokens, first.last_block) == (0, hashes(prompt)[-1])
    assert all(update.cached_tokens is None for update in later)
    assert server.tokens(1) == server.tokens(2) == [200, 201, 202, 203]
    assert server.updates[2][0].cached_tokens == 96
    assert server.finish(2) == "length"


async def test_what_is_reported_as_stored_are_the_blocks_of_prompt_and_answer_under_their_salt():
    prompt = list(range(60))
    async with running() as (engine, server, _, _):
        engine.apply(add(prompt, 1, sampling=SamplingParameters(max_output_tokens=40)))
        await server.ended(1)

        # The last token has no KV.
        computed = prompt + server.tokens(1)[:-1]
        assert server.mirror.holds_all(hashes(computed))
        assert len(server.mirror) == len(computed) // BLOCK_TOKENS
        assert not server.mirror.holds_any(hashes(computed, salt=b"another"))


async def test_copies_of_a_block_are_stored_once_and_removed_with_the_last():
    prompt, sampling = list(range(64)), SamplingParameters(max_output_tokens=1)
    async with running(StandInVllm(facts(6)), steps=False) as (engine, server, vllm, _):
        # given: two sequences that do not read the cache compute equal blocks at once
        engine.apply(add(prompt, 1, 2, sampling=sampling, may_read_cache=False))
        await server.until(lambda: server.load.waiting_sequences == 2)
        await asyncio.sleep(0)
        vllm.step()
        await server.ended(1, 2)
        assert (vllm.cached_copies, len(server.mirror)) == (4, 2)

        # when a prompt takes two of the four
        engine.apply(add([9] * 127, 3, sampling=sampling))
        await asyncio.sleep(0.01)
        vllm.step()
        await server.ended(3)

        # then
        assert server.mirror.holds_all(hashes(prompt))
        assert sum(report.evicted_blocks for report in server.reports) == 2
        engine.apply(add([8] * 190, 4, sampling=sampling))
        await asyncio.sleep(0.01)
        vllm.step()
        await server.ended(4)
        assert not server.mirror.holds_any(hashes(prompt))


async def test_the_mirror_is_the_pool_through_evictions_aborts_and_clears():
    async with running(StandInVllm(facts(24))) as (engine, server, vllm, _):
        for number in range(1, 120):
            prompt = [number % 7] * (16 + 7 * (number % 30))
            engine.apply(add(prompt, number, salt=b"ab"[: number % 3]))
            if number % 5 == 0:
                engine.apply(AbortSequence(sequence_id=number))
            elif number % 31 == 0:
                engine.apply(ClearCache())
            if number % 5:
                await server.ended(number)
        await server.until(lambda: len(server.mirror) == len(set(vllm._hash_of.values())))
        assert vllm.clears == 4  # one after the warm-up
        assert sum(report.evicted_blocks for report in server.reports) > 20


async def test_what_vllm_announces_a_step_ahead_is_stored_when_it_is_computed():
    """As with asynchronous scheduling: a step's end brings the blocks of the next one, in flight."""
    first, second = list(range(64)), list(range(500, 564))
    vllm = StandInVllm(facts(steps_ahead=1))
    async with running(vllm, steps=False) as (engine, server, _, _):
        engine.apply(add(first, 1))
        await vllm.waiting(1)
        vllm.step()
        engine.apply(add(second, 2))
        await vllm.waiting(2)

        # when the first prompt's step has ended, and that of the second one is announced
        vllm.step()
        await server.until(lambda: server.tokens(1))
        await vllm.events_are_read()
        assert not server.mirror.holds_any(hashes(second))
        assert server.updates[1][0].cached_tokens == 0

        # then each is stored when its own step has ended, or one step later
        vllm.step()
        await server.until(lambda: server.tokens(2))
        await server.until(lambda: server.mirror.holds_all(hashes(first)))
        for _ in range(4):
            vllm.step()
        await server.ended(1, 2)
        assert server.mirror.holds_all(hashes(second))
        assert (server.tokens(1), server.tokens(2)) == ([64, 65, 66, 67], [564, 565, 566, 567])


async def test_lost_events_empty_the_cache_on_both_sides():
    prompt = list(range(64))
    async with running() as (engine, server, vllm, _):
        engine.apply(add(prompt, 1))
        await server.ended(1)
        assert len(server.mirror) == 2

        vllm.lose_events()
        await server.until(lambda: not len(server.mirror))
        assert vllm.clears == 2
        engine.apply(add(prompt, 2))
        await server.ended(2)

        assert server.updates[2][0].cached_tokens == 0
        assert server.mirror.holds_all(hashes(prompt))


async def test_load_has_what_runs_waits_and_is_queued():
    async with running(steps=False) as (engine, server, vllm, _):
        engine.apply(add(list(range(100)), 1, router_id="router-0", dispatch=17))
        engine.apply(add(list(range(300, 350)), 2, router_id="router-0", dispatch=16))
        await server.until(lambda: server.load.waiting_sequences == 2)
        assert server.load.queued_uncached_tokens == 150
        assert server.load.admitted_dispatches == {"router-0": 17}
        assert server.load.open_dispatches == {"router-0": 2}
        await asyncio.sleep(0.01)

        vllm.step()
        await server.until(lambda: server.load.running_sequences == 2)

        load = server.load
        assert (load.waiting_sequences, load.queued_uncached_tokens) == (0, 0)
        assert load.context_tokens == 150
        assert load.total_blocks == vllm.facts.total_blocks
        assert load.fixed_batched_tokens == vllm.facts.max_batched_tokens
        assert load.pinned_blocks == 6
        assert load.cached_blocks == 0
        assert load.step_time.samples > 0
        for _ in range(3):
            vllm.step()
        await server.ended(1, 2)
        assert (server.load.pinned_blocks, server.load.cached_blocks) == (0, 4)
        assert (server.load.running_sequences, server.load.context_tokens) == (0, 0)
        assert server.load.open_dispatches == {}


async def test_an_idle_sequence_is_no_open_dispatch():
    async with running(steps=False) as (engine, server, _, _):
        engine.apply(add([5] * 40, 1, router_id="router-0", dispatch=2))
        engine.apply(add([6] * 40, 2, router_id="router-0", dispatch=1, is_idle=True))
        await server.until(lambda: server.load.waiting_sequences == 1)

        assert server.load.open_dispatches == {"router-0": 1}


async def test_an_abort_ends_the_sequence_in_vllm():
    async with running(steps=False) as (engine, server, vllm, _):
        engine.apply(add([5] * 40, 1))
        await server.until(lambda: server.load.waiting_sequences == 1)
        await asyncio.sleep(0.01)
        assert "1" in vllm.requests

        engine.apply(AbortSequence(sequence_id=1))
        engine.apply(AbortSequence(sequence_id=99))
        await server.until(lambda: server.load.waiting_sequences == 0)
        await asyncio.sleep(0.01)

        assert not vllm.requests
        assert 1 not in server.updates


async def test_a_prefix_computed_ahead_brings_no_token_comes_last_and_is_in_no_load_report():
    nothing = SamplingParameters(max_output_tokens=0)
    async with running(steps=False) as (engine, server, vllm, _):
        engine.apply(add(list(range(65)), 1, sampling=nothing, is_idle=True))
        engine.apply(add(list(range(500, 510)), 2, priority=100))
        await server.until(lambda: server.load.waiting_sequences == 1)
        await asyncio.sleep(0.01)
        assert vllm.priorities["1"] > vllm.priorities["2"] == 100

        vllm.step()
        await server.ended(1)

        assert server.tokens(1) == []
        assert (server.finish(1), server.updates[1][0].cached_tokens) == ("length", 0)
        assert server.load.running_sequences == 1
        assert server.mirror.holds_all(hashes(list(range(65))))


async def test_log_probabilities_of_answer_and_prompt_come_in_our_form():
    sampling = SamplingParameters(max_output_tokens=2, logprobs=1, prompt_logprobs=0)
    async with running() as (engine, server, _, _):
        engine.apply(add([10, 11, 12], 1, sampling=sampling, may_read_cache=False))
        await server.ended(1)

    scores = [score for update in server.updates[1] for score in update.logprobs or ()]
    assert [score.logprob for score in scores] == [-0.5, -0.5]
    assert [list(score.top_token_ids) for score in scores] == [[13], [14]]
    assert [score.logprob for score in server.updates[1][0].prompt_logprobs] == [-2.0, -2.0]


@pytest.mark.parametrize(
    ("prompt", "sampling", "error"),
    [
        ([VOCABULARY], SamplingParameters(), "outside the vocabulary"),  # it would end vLLM's engine core
        ([5] * 5000, SamplingParameters(), "maximum context length"),
        ([5], SamplingParameters(temperature=float("nan")), "temperature"),
        ([5], SamplingParameters(logit_bias={VOCABULARY: 1.0}), "a bias token id"),
    ],
)
async def test_what_vllm_could_not_compute_never_reaches_it(prompt, sampling, error):
    async with running() as (engine, server, vllm, _):
        engine.apply(add(prompt, 1, sampling=sampling))
        await server.ended(1)

        assert error in server.updates[1][0].error
        assert not vllm.requests


async def test_a_request_that_vllm_refuses_ends_alone():
    async with running() as (engine, server, vllm, _):
        vllm.refusal = "no such thing"
        engine.apply(add([5] * 40, 1))
        await server.ended(1)
        vllm.refusal = ""
        engine.apply(add([5] * 40, 2))
        await server.ended(2)

    assert (server.finish(1), server.updates[1][0].error) == ("refused", "no such thing")
    assert server.finish(2) == "length"
    assert sum(report.failed_sequences for report in server.reports) == 1


@pytest.mark.parametrize("busy", [False, True])
async def test_the_death_of_a_process_of_vllm_ends_the_engine(busy, monkeypatch):
    monkeypatch.setattr(loop_module, "CHECK_SECONDS", 0.01)
    async with running(steps=False) as (engine, _, vllm, following):
        if busy:
            engine.apply(add([5] * 40, 1))
            await asyncio.sleep(0.01)
        vllm.die()
        with pytest.raises(VllmDiedError):
            await asyncio.wait_for(following, 10)


async def test_a_damaged_model_ends_the_engine(monkeypatch):
    monkeypatch.setattr(loop_module, "CHECK_SECONDS", 0.01)
    damaged = []

    def check():
        if damaged:
            raise VllmDiedError("a file is damaged")

    async with running(check=check) as (_, _, _, following):
        damaged.append(1)
        with pytest.raises(VllmDiedError, match="damaged"):
            await asyncio.wait_for(following, 10)


async def test_a_vllm_without_events_is_refused_before_it_is_ready(monkeypatch):
    monkeypatch.setattr(loop_module, "FIRST_EVENT_SECONDS", 0.01)
    vllm = StandInVllm()
    vllm.sends_events = False
    with pytest.raises(NoEventsError, match="sends no events"):
        async with running(vllm):
            pass


async def test_a_drain_is_reported_and_a_pause_changes_nothing():
    async with running() as (engine, server, _, _):
        engine.apply(Drain())
        engine.apply(add([5] * 40, 1))
        engine.apply(PauseSequence(sequence_id=1))
        await server.ended(1)
        assert server.load.draining
        assert len(server.tokens(1)) == 4


async def test_vllms_metrics_are_passed_on_up_to_a_bound_and_end_nothing():
    class Failing(StandInVllm):
        def metrics(self):
            raise ValueError("a collector of a plug-in")

    small, large = StandInVllm(), StandInVllm()
    large.metrics_text = bytes(MAX_METRICS_BYTES + 1)
    for vllm, expected in ((small, small.metrics_text), (large, b""), (Failing(), b"")):
        async with running(vllm) as (engine, server, _, _):
            engine.apply(ReadMetrics())
            await server.until(lambda server=server: server.metrics)
            assert server.metrics == [expected]
            engine.apply(add([1, 2], 1))
            await server.ended(1)


async def test_a_vllm_that_hangs_reports_no_progress_though_its_load_is_reported(monkeypatch):
    monkeypatch.setattr(loop_module, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(loop_module, "IDLE_HEARTBEAT_SECONDS", 0.02)
    async with running(steps=False) as (engine, server, vllm, _):
        await server.until(lambda: len(server.reports) > 2)
        assert not any(report.no_progress for report in server.reports[1:])

        engine.apply(add([1, 2], 1))
        before = len(server.reports)
        await server.until(lambda: len(server.reports) > before + 5)
        assert all(report.no_progress for report in server.reports[before + 1 :])

        vllm.step()
        await server.until(lambda: server.tokens(1))
        assert not all(report.no_progress for report in server.reports[before + 1 :])
