"""A step that cannot be computed ends the sequences that cause it, and no others."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from warmfleet_testing.engine.fake_runner import EXPLODING_TOKEN_ID, EngineDriver, FakeRunnerError
from warmfleet_worker.engine.batch import Chunk, ChunkResult, StepBatch, StepResult
from warmfleet_worker.engine.engine import MAX_FAILED_STEPS, RunnerBrokenError
from warmfleet_worker.engine.step_recovery import Computation


def prompt_of(tokens, first=0):
    return [(first + index) % 500 for index in range(tokens)]


@pytest.fixture(autouse=True)
def log():
    with capture_logs() as entries:
        yield entries


def chunk_of(sequence_id):
    return Chunk(sequence_id=sequence_id, token_ids=(1,), first_position=0, block_ids=(0,), sample=None)


class Judge:
    """Computes batches without a culprit, and counts its calls; others raise in one of the halves."""

    def __init__(self, culprits, raises_at_once):
        self.culprits = culprits
        self.raises_at_once = raises_at_once
        self.executions = 0

    def begin(self, batch):
        self.executions += 1
        if self.raises_at_once:
            self.judge(batch)
        return Trial(self, batch)

    def judge(self, batch):
        if any(chunk.sequence_id in self.culprits for chunk in batch.chunks):
            raise FakeRunnerError


@dataclass
class Trial:
    judge: Judge
    batch: StepBatch

    def finish(self):
        self.judge.judge(self.batch)
        results = [ChunkResult(chunk.sequence_id, finite=True) for chunk in self.batch.chunks]
        return StepResult(tuple(results), seconds=1.0)


@given(chunks=st.integers(1, 40), raises_at_once=st.booleans(), data=st.data())
def test_exactly_the_failing_sequences_fail(chunks, raises_at_once, data):
    culprits = data.draw(st.sets(st.integers(0, chunks - 1), max_size=chunks))
    judge = Judge(culprits, raises_at_once)

    outcome = Computation(judge.begin, StepBatch(tuple(map(chunk_of, range(chunks))))).finish()

    ids = [None if result is None else result.sequence_id for result in outcome.chunks]
    assert ids == [None if one in culprits else one for one in range(chunks)]
    assert outcome.failed_chunks == len(culprits)
    assert outcome.wholly_failed == (len(culprits) == chunks)
    assert (outcome.failures == 0) == (not culprits)
    assert judge.executions <= 2 * chunks


@dataclass
class Answer:
    result: StepResult

    def finish(self):
        return self.result


def test_a_runner_that_answers_wrongly_is_treated_as_one_that_raised():
    wrong = [
        StepResult((), 0.1),
        StepResult((ChunkResult(99, finite=True),), 0.1),
        StepResult((ChunkResult(1, finite=True, token_ids=(7,)),), 0.1),
    ]
    for result in wrong:
        outcome = Computation(lambda _, result=result: Answer(result), StepBatch((chunk_of(1),))).finish()
        assert outcome.chunks == (None,)
        assert outcome.failures == 2


def test_other_sequences_of_a_failing_step_generate_what_they_generate_without_it():
    driver = EngineDriver(max_batched_tokens=200)
    for sequence_id in range(7):
        driver.add(sequence_id, prompt_of(9, first=50 * sequence_id), max_output_tokens=12)
    driver.step()
    driver.add(7, [*prompt_of(9), EXPLODING_TOKEN_ID])

    driver.run()

    assert driver.finish_reasons[7] == "error"
    assert FakeRunnerError.__name__ not in driver.errors[7], "no inner detail for the client"
    driver.assert_exact(*range(7))


def test_a_failing_sequence_leaves_nothing_in_the_cache_but_what_it_had_committed():
    driver = EngineDriver(max_batched_tokens=8)
    driver.add(1, [*prompt_of(10), EXPLODING_TOKEN_ID, *prompt_of(8)])
    driver.run()

    assert driver.finish_reasons == {1: "error"}
    assert len(driver.resident) == 2
    driver.add(2, [*prompt_of(8), *prompt_of(9, first=200)])
    driver.run()
    assert driver.cached_tokens[2] == 8
    driver.assert_exact(2)


@pytest.mark.parametrize("at_once", [True, False], ids=["first half", "second half"])
def test_a_step_that_fails_once_fails_no_sequence(at_once):
    for sequences in (1, 2, 5):
        driver = EngineDriver()
        driver.runner.fails_at_once = at_once
        for sequence_id in range(sequences):
            driver.add(sequence_id, prompt_of(9, first=50 * sequence_id))
        driver.runner.fail_next_step = True

        report = driver.step()

        assert (report.failed_executions, report.failed_sequences) == (1, 0)
        driver.run()
        driver.assert_exact(*range(sequences))


@pytest.mark.parametrize("largest", [1, 2, 3, 5])
def test_what_is_too_much_for_the_memory_at_once_is_computed_in_parts(largest):
    driver = EngineDriver(max_batched_tokens=200)
    driver.runner.largest_possible_batch = largest
    for sequence_id in range(7):
        driver.add(sequence_id, prompt_of(9, first=50 * sequence_id))

    driver.run()

    assert driver.failed_executions > 0
    driver.assert_exact(*range(7))


def test_requests_that_cannot_be_computed_never_end_the_engine():
    driver = EngineDriver()
    for sequence_id in range(5 * MAX_FAILED_STEPS):
        driver.add(sequence_id, [*prompt_of(3), EXPLODING_TOKEN_ID])
        driver.run()

    assert set(driver.finish_reasons.values()) == {"error"}
    driver.add(99, prompt_of(9))
    driver.run()
    driver.assert_exact(99)


def test_a_runner_that_computes_nothing_at_all_ends_the_engine():
    driver = EngineDriver(max_running_sequences=2)
    for sequence_id in range(2 * MAX_FAILED_STEPS):
        driver.add(sequence_id, prompt_of(9, first=50 * sequence_id))
    driver.runner.broken = True
    for _ in range(MAX_FAILED_STEPS - 1):
        assert driver.step().failed_sequences == 2

    with pytest.raises(RunnerBrokenError, match=f"{MAX_FAILED_STEPS} steps in a row"):
        driver.engine.step()


def test_a_runner_that_recovers_is_given_another_chance():
    driver = EngineDriver(max_running_sequences=1)
    for sequence_id in range(12):
        driver.add(sequence_id, prompt_of(9, first=30 * sequence_id), max_output_tokens=1)
    for _ in range(4):
        driver.runner.broken = True
        for _ in range(MAX_FAILED_STEPS - 1):
            driver.step()
        driver.runner.broken = False
        driver.step()
    driver.run()

    assert [driver.finish_reasons[one] for one in range(12)] == ["error", "error", "length"] * 4


@settings(max_examples=40)
@given(culprits=st.sets(st.integers(0, 9)), budget=st.sampled_from([0, 7, 30, 200]))
def test_with_any_failing_ones_among_them_the_other_sequences_are_exact(culprits, budget):
    driver = EngineDriver(total_blocks=48, max_batched_tokens=budget)
    for sequence_id in range(10):
        tail = [EXPLODING_TOKEN_ID] if sequence_id in culprits else []
        driver.add(sequence_id, [*prompt_of(7, first=20 * sequence_id), *tail], max_output_tokens=6)
    driver.run()

    for sequence_id in range(10):
        if sequence_id in culprits:
            assert driver.finish_reasons[sequence_id] == "error"
        else:
            driver.assert_exact(sequence_id)
