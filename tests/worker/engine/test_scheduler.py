"""What the scheduler puts into a step, seen through an engine whose runner has no model."""

from collections import Counter

import msgspec
import pytest

from warmfleet_testing.engine.fake_runner import NOT_FINITE_TOKEN_ID, EngineDriver
from warmfleet_worker.engine.scheduler import SchedulerSettings
from warmfleet_worker.engine.step_time import TARGET_STEP_SECONDS


def prompt_of(tokens, first=0):
    return [(first + index) % 500 for index in range(tokens)]


def chunk_lengths(driver):
    return {chunk.sequence_id: len(chunk.token_ids) for chunk in driver.runner.batches[-1].chunks}


def run_until_ended(driver, sequence_id):
    """The reports of the steps until the sequence has ended."""
    reports = []
    while sequence_id not in driver.finish_reasons:
        reports.append(driver.step())
    return reports


# Budget and seats.


def test_a_step_mixes_decodes_with_a_chunk_of_prefill_under_the_budget():
    driver = EngineDriver(max_batched_tokens=10)
    driver.add(1, prompt_of(4), max_output_tokens=20)
    driver.step()
    driver.add(2, prompt_of(30, first=100), max_output_tokens=20)

    driver.step()
    assert chunk_lengths(driver) == {1: 1, 2: 9}
    driver.step()
    assert chunk_lengths(driver) == {1: 1, 2: 9}

    driver.run()
    driver.assert_exact(1, 2)
    assert driver.runner.counters.partial_prefills == 3


def test_sequences_join_and_leave_in_any_step():
    driver = EngineDriver()
    driver.add(1, prompt_of(5), max_output_tokens=2)
    driver.step()
    driver.add(2, prompt_of(6, first=50), max_output_tokens=5)
    driver.step()
    assert driver.finish_reasons == {1: "length"}
    driver.add(3, prompt_of(7, first=90), max_output_tokens=5)
    driver.step()

    assert chunk_lengths(driver) == {2: 1, 3: 7}


def test_no_more_sequences_run_than_there_are_seats():
    driver = EngineDriver(max_running_sequences=3)
    for sequence_id in range(7):
        driver.add(sequence_id, prompt_of(5, first=40 * sequence_id))

    report = driver.step()

    assert report.load.running_sequences == 3
    assert report.load.waiting_sequences == 4
    driver.run()
    assert driver.runner.counters.largest_batch == 3
    driver.assert_exact(*range(7))


@pytest.mark.parametrize("budget", [1, 2, 5, 16])
def test_a_fixed_budget_is_never_exceeded(budget):
    driver = EngineDriver(max_batched_tokens=budget, max_running_sequences=8)
    for sequence_id in range(6):
        driver.add(sequence_id, prompt_of(9, first=40 * sequence_id))

    while driver.engine.has_work:
        assert driver.step().scheduled_tokens <= budget

    driver.assert_exact(*range(6))


def test_the_auto_budget_follows_the_measured_rate():
    driver = EngineDriver(total_blocks=1000, max_batched_tokens=0, max_model_length_tokens=2000)
    assert driver.engine.max_batched_tokens == 128
    for sequence_id in range(8):
        driver.add(sequence_id, prompt_of(400, first=sequence_id))
    driver.run()

    # The fake runner computes a token in 1 ms.
    assert driver.engine.max_batched_tokens == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize(("setting", "reported"), [(64, 64), (0, msgspec.UNSET)])
def test_routers_learn_a_budget_that_is_set_and_no_other(setting, reported):
    driver = EngineDriver(max_batched_tokens=setting)

    assert driver.engine.report().load.fixed_batched_tokens == reported


@pytest.mark.parametrize("target_seconds", [TARGET_STEP_SECONDS, 0.054])
def test_a_cold_prompt_after_cached_chat_delays_streams_by_the_target_time_at_most(target_seconds):
    # given steps that take 42 ms up to 40 tokens, and 1 ms more for each token above
    driver = EngineDriver(
        total_blocks=1200,
        max_batched_tokens=0,
        max_model_length_tokens=4000,
        target_step_seconds=target_seconds,
    )
    driver.runner.flat_tokens = 40
    # and a stream beside chats whose prompts are mostly cached: all steps are flat
    driver.add(0, prompt_of(20), max_output_tokens=1000)
    for turn in range(1, 30):
        driver.add(turn, prompt_of(20 + 10 * turn), max_output_tokens=1)
        run_until_ended(driver, turn)
        for _ in range(8):
            driver.step()

    # when a prompt comes that is not cached
    driver.add(30, prompt_of(3000, first=100), max_output_tokens=1)
    seconds = [report.step_seconds for report in run_until_ended(driver, 30)]

    # then each step takes about as long as is meant, and soon most of that
    assert max(seconds) <= 1.05 * target_seconds
    assert sum(seconds[4:-1]) >= 0.9 * target_seconds * len(seconds[4:-1])


def test_the_auto_budget_cuts_no_decode_and_leaves_prefill_a_share():
    driver = EngineDriver(
        total_blocks=1000, max_batched_tokens=0, max_running_sequences=60, max_model_length_tokens=2000
    )
    driver.runner._seconds_per_token = 0.5  # so slow that the budget stands at its minimum
    for sequence_id in range(50):
        driver.add(sequence_id, prompt_of(3, first=9 * sequence_id), max_output_tokens=100)
    for _ in range(10):
        driver.step()
    assert driver.engine.max_batched_tokens == 32
    driver.add(50, prompt_of(70))

    driver.step()

    assert chunk_lengths(driver) == {**dict.fromkeys(range(50), 1), 50: 32}


def test_a_sequence_that_does_not_fit_yet_is_not_overtaken():
    driver = EngineDriver(total_blocks=10)
    driver.add(1, prompt_of(24), max_output_tokens=4)
    driver.step()
    driver.add(2, prompt_of(24, first=100), max_output_tokens=4)
    driver.add(3, prompt_of(4, first=200), max_output_tokens=4)

    report = driver.step()

    assert report.load.running_sequences == 1
    driver.run()
    driver.assert_exact(1, 2, 3)


def test_an_admission_leaves_a_reserve_to_running_sequences():
    driver = EngineDriver(total_blocks=10)
    driver.add(1, prompt_of(8), max_output_tokens=8)
    driver.step()
    driver.add(2, prompt_of(28, first=100), max_output_tokens=2)  # needs the 7 blocks that are left

    assert driver.step().load.running_sequences == 1
    driver.run()
    assert driver.preempted_sequences == 0
    driver.assert_exact(1, 2)


# Preemption.


def test_the_youngest_is_preempted_when_a_decode_finds_the_pool_full():
    driver = EngineDriver(total_blocks=8)
    for sequence_id in (1, 2, 3):
        driver.add(sequence_id, prompt_of(6, first=50 * sequence_id), max_output_tokens=14)

    while not driver.preempted_sequences:
        driver.step()

    assert [sequence.sequence_id for sequence in driver.engine._scheduler.running] == [1, 2]
    assert [sequence.sequence_id for sequence in driver.engine._scheduler.waiting] == [3]
    driver.run()
    driver.assert_exact(1, 2, 3)


def test_a_preempted_sequence_resumes_from_its_own_blocks():
    driver = EngineDriver(total_blocks=10)
    driver.add(1, prompt_of(16), max_output_tokens=12)
    driver.add(2, prompt_of(16, first=100), max_output_tokens=12)
    driver.run()

    assert driver.preempted_sequences > 0
    driver.assert_exact(1, 2)
    once = 2 * (16 + 12 - 1)
    again = driver.runner.counters.computed_tokens - once
    assert 0 < again < 16 * driver.preempted_sequences, "a resume found nothing of its own in the cache"


def test_no_new_sequence_is_admitted_in_a_step_that_preempted():
    driver = EngineDriver(total_blocks=8)
    for sequence_id in (1, 2, 3):
        driver.add(sequence_id, prompt_of(6, first=50 * sequence_id), max_output_tokens=14)
    driver.step()
    driver.add(4, prompt_of(20, first=300), max_output_tokens=2)

    while not driver.preempted_sequences:
        report = driver.step()

    assert report.load.waiting_sequences == 2
    assert chunk_lengths(driver) == {1: 1, 2: 1}
    assert [sequence.sequence_id for sequence in driver.engine._scheduler.waiting] == [3, 4]
    driver.run()
    driver.assert_exact(1, 2, 3, 4)


def test_a_victim_that_was_planned_already_leaves_the_step():
    driver = EngineDriver(total_blocks=14, max_batched_tokens=24)
    driver.add(1, prompt_of(16), max_output_tokens=30)
    driver.add(2, prompt_of(17), max_output_tokens=30)  # follows the first, so the third starts before it
    driver.add(3, prompt_of(8, first=100), max_output_tokens=30)
    driver.step()
    driver.step()
    assert [sequence.sequence_id for sequence in driver.engine._scheduler.running] == [1, 3, 2]

    while not driver.preempted_sequences:
        driver.step()

    assert 3 not in chunk_lengths(driver)
    driver.run()
    driver.assert_exact(1, 2, 3)


# Leaders and followers.


def test_a_follower_waits_for_its_leader_and_computes_only_the_rest():
    driver = EngineDriver(max_batched_tokens=8)
    prefix = prompt_of(32)
    driver.add(1, [*prefix, 400], max_output_tokens=2)
    driver.add(2, [*prefix, 401], max_output_tokens=2)
    driver.add(3, [*prefix, 402], max_output_tokens=2)

    driver.run()

    driver.assert_exact(1, 2, 3)
    assert driver.cached_tokens == {1: 0, 2: 32, 3: 32}
    assert driver.runner.counters.computed_tokens == 33 + 1 + 1 + 3 * 1


def test_a_follower_does_not_hold_up_others_behind_it():
    driver = EngineDriver(max_batched_tokens=16)
    driver.add(1, prompt_of(15), max_output_tokens=1)
    driver.add(2, prompt_of(15), max_output_tokens=1)
    driver.add(3, prompt_of(1, first=300), max_output_tokens=1)

    driver.step()

    assert chunk_lengths(driver) == {1: 15, 3: 1}
    driver.run()
    assert driver.cached_tokens[2] == 12


def test_a_follower_takes_over_when_its_leader_is_aborted():
    driver = EngineDriver(max_batched_tokens=8)
    driver.add(1, prompt_of(40), max_output_tokens=2)
    driver.add(2, prompt_of(40), max_output_tokens=2)
    driver.step()
    assert chunk_lengths(driver) == {1: 8}

    driver.engine.abort(1)
    driver.step()

    assert chunk_lengths(driver) == {2: 8}
    assert driver.cached_tokens[2] == 8, "what the leader had finished is not lost"
    driver.run()
    driver.assert_exact(2)


def test_a_follower_takes_over_when_its_leader_fails():
    driver = EngineDriver(max_batched_tokens=8)
    shared = prompt_of(16)
    driver.add(1, [*shared, NOT_FINITE_TOKEN_ID, *prompt_of(20)], max_output_tokens=2)
    driver.add(2, [*shared, *prompt_of(20)], max_output_tokens=2)

    driver.run()

    assert driver.finish_reasons[1] == "error"
    assert driver.cached_tokens[2] == 16
    driver.assert_exact(2)


def test_a_follower_waits_no_longer_than_its_leader_computes():
    driver = EngineDriver(max_batched_tokens=8)
    driver.add(1, prompt_of(60), max_output_tokens=30)
    driver.add(2, prompt_of(60), max_output_tokens=30)

    steps = 0
    while 2 not in driver.cached_tokens:
        driver.step()
        steps += 1

    assert steps == 8, "admitted as soon as the last block it can reuse is there"
    assert driver.cached_tokens[2] == 56
    driver.run()
    driver.assert_exact(1, 2)


def test_a_sequence_that_reads_no_cache_neither_follows_nor_leads():
    driver = EngineDriver(max_batched_tokens=64)
    driver.add(1, prompt_of(20), use_prefix_cache=False, max_output_tokens=2)
    driver.add(2, prompt_of(20), max_output_tokens=2)

    driver.step()

    assert chunk_lengths(driver) == {1: 20, 2: 20}
    assert driver.cached_tokens == {1: 0, 2: 0}
    driver.run()
    assert len(driver.resident) == 5


# The outcome of a step.


def test_only_the_sequence_with_a_value_that_is_not_finite_ends():
    driver = EngineDriver()
    driver.add(1, [*prompt_of(10), NOT_FINITE_TOKEN_ID, 5])
    driver.add(2, prompt_of(10, first=100))

    driver.run()

    assert driver.finish_reasons[1] == "error"
    assert "not finite" in driver.errors[1]
    driver.assert_exact(2)


def test_blocks_of_a_failed_chunk_are_never_matched_and_earlier_ones_are():
    driver = EngineDriver(max_batched_tokens=8)
    bad = [*prompt_of(10), NOT_FINITE_TOKEN_ID, *prompt_of(8)]
    driver.add(1, bad)
    driver.run()

    assert len(driver.resident) == 2  # the first chunk of eight tokens was finite
    driver.add(2, [*bad[:8], *prompt_of(9, first=200)])
    driver.run()

    assert driver.cached_tokens[2] == 8
    driver.assert_exact(2)


def test_a_prompt_alone_can_be_computed_without_an_answer():
    driver = EngineDriver()
    driver.add(1, prompt_of(12), max_output_tokens=0)
    driver.run()

    assert driver.outputs[1] == []
    assert driver.finish_reasons[1] == "length"
    driver.add(2, prompt_of(13), max_output_tokens=1)
    driver.run()
    assert driver.cached_tokens[2] == 12


def test_a_stop_token_ends_a_sequence_and_is_its_last_token():
    driver = EngineDriver()
    driver.add(1, prompt_of(5), max_output_tokens=20)
    driver.run()
    stop = driver.outputs[1][4]
    assert stop not in driver.outputs[1][:4]

    driver.add(2, prompt_of(5), max_output_tokens=20, stop_token_ids=frozenset({stop}))
    driver.run()

    assert driver.finish_reasons[2] == "stop"
    assert driver.outputs[2] == driver.outputs[1][:5]


def test_a_context_that_is_full_ends_a_sequence():
    driver = EngineDriver(max_model_length_tokens=20)
    driver.add(1, prompt_of(15), max_output_tokens=100)
    driver.run()

    assert len(driver.outputs[1]) == 5
    driver.assert_exact(1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_running_sequences": 0},
        {"max_waiting_sequences": 0},
        {"max_batched_tokens": -1},
        {"max_model_length_tokens": 1},
    ],
)
def test_settings_that_could_never_run_anything_are_refused(wrong):
    with pytest.raises(ValueError, match=r"at least|or more"):
        SchedulerSettings(**wrong)


# Sample requests.


def test_token_counts_are_handed_over_exactly_when_a_penalty_reads_them():
    # given one sequence with a penalty and one without
    driver = EngineDriver()
    driver.add(1, prompt_of(5), max_output_tokens=4, frequency_penalty=0.5)
    driver.add(2, prompt_of(6, first=50), max_output_tokens=4)
    finish = driver.runner.finish
    executed = []

    def checked(batch):
        # then while a step is computed they count prompt and output so far
        samples = {chunk.sequence_id: chunk.sample for chunk in batch.chunks}
        counts = samples[1].token_counts
        assert sorted(counts.seen) == sorted({*driver.prompts[1], *driver.outputs[1]})
        assert dict(zip(counts.generated, counts.times, strict=True)) == Counter(driver.outputs[1])
        assert samples[1].output_index == len(driver.outputs[1])
        assert samples[2].token_counts is None
        executed.append(batch)
        return finish(batch)

    driver.runner.finish = checked
    driver.run()

    assert len(executed) == 4
    driver.assert_exact(1, 2)


def test_a_bias_outside_the_vocabulary_ends_only_its_own_sequence():
    driver = EngineDriver()
    driver.add(1, prompt_of(5), logit_bias={1000: 1.0})
    driver.add(2, prompt_of(6))

    driver.run()

    assert driver.finish_reasons == {1: "refused", 2: "length"}
    assert "bias token id" in driver.errors[1]
