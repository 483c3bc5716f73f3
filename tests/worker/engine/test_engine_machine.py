"""Any operations in any order: an engine's sequences generate what they generate alone.

`EngineDriver` checks after every step that blocks add up, that no writable block has two holders and that
the reported events, replayed into a plain set, are what is resident.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from structlog.testing import capture_logs

from warmfleet_testing.engine.fake_runner import EXPLODING_TOKEN_ID, NOT_FINITE_TOKEN_ID, EngineDriver
from warmfleet_worker.engine.hit_verifier import VERIFICATION_ID
from warmfleet_worker.engine.sequence import SequenceState


def prompt_of(tokens, first=0):
    return [(first + index) % 500 for index in range(tokens)]


@pytest.fixture(autouse=True)
def log():
    """What the engine logs; formatting thousands of tracebacks would be most of the time."""
    with capture_logs() as entries:
        yield entries


PREFIXES = [prompt_of(length, first=100 * family) for family in range(3) for length in (3, 8, 13)]


class EngineMachine(RuleBasedStateMachine):
    """Shared prefixes, priorities, pauses, aborts and failures in a pool that is too small for them."""

    steps = 0
    preempted_sequences = 0
    evicted_blocks = 0
    cached_tokens = 0
    verified_blocks = 0
    partial_prefills = 0
    exact_sequences = 0
    failed_executions = 0
    pauses = 0
    inherited_ranks = 0
    largest_batch = 0
    lost_results = 0
    """Of sequences that were stopped while a step computed them."""

    @initialize(
        total_blocks=st.integers(9, 14),
        budget=st.sampled_from([0, 3, 7, 16, 64]),
        seats=st.integers(2, 6),
        fails_at_once=st.booleans(),
        tokens_per_step=st.sampled_from([1, 1, 1, 2, 3]),
        verify_hits_one_in=st.sampled_from([0, 0, 1, 2]),
    )
    def start(self, total_blocks, budget, seats, fails_at_once, tokens_per_step, verify_hits_one_in):
        self.driver = EngineDriver(
            total_blocks=total_blocks,
            max_batched_tokens=budget,
            max_running_sequences=seats,
            max_model_length_tokens=34,
            verify_hits_one_in=verify_hits_one_in,
        )
        self.driver.runner.fails_at_once = fails_at_once
        self.driver.runner.tokens_per_step = tokens_per_step
        self.next_id = 0
        self.aborted = set()
        self.paused = set()
        self.prefills_before = []
        self.free_seats_before = 0
        self.plan = None
        schedule = self.driver.engine._scheduler.schedule

        def recorded(budget):
            scheduler = self.driver.engine._scheduler
            self.prefills_before = [one for one in scheduler.running if one.uncomputed_tokens > 1]
            seats_taken = len(scheduler.running)
            self.free_seats_before = max(scheduler._seats - seats_taken, 0)
            self.plan = schedule(budget)
            self.check_followers()
            return self.plan

        self.driver.engine._scheduler.schedule = recorded

    def live(self):
        return [
            n for n in self.driver.prompts if n not in self.driver.finish_reasons and n not in self.aborted
        ]

    @rule(
        prefix=st.sampled_from(PREFIXES),
        tail=st.lists(st.sampled_from([1, 2]), max_size=3),
        max_output_tokens=st.integers(0, 20),
        stops=st.booleans(),
        salt=st.sampled_from([b"", b"", b"tenant"]),
        use_prefix_cache=st.sampled_from([True, True, True, False]),
        priority=st.sampled_from([0, 0, 0, -5, 7]),
        poison=st.sampled_from([None] * 8 + [NOT_FINITE_TOKEN_ID, EXPLODING_TOKEN_ID]),
    )
    def add(self, prefix, tail, max_output_tokens, stops, salt, use_prefix_cache, priority, poison):
        prompt = [*prefix, *tail, *([] if poison is None else [poison])]
        self.driver.add(
            self.next_id,
            prompt,
            max_output_tokens=max_output_tokens,
            stop_token_ids=frozenset(range(0, 500, 10)) if stops else frozenset(),
            salt=salt,
            use_prefix_cache=use_prefix_cache,
            priority=priority,
        )
        self.next_id += 1

    @rule()
    def add_a_better_follower_of_a_prompt_that_has_begun(self):
        prompt = prompt_of(24, first=7 * self.next_id)
        for priority in (7, -5):
            self.driver.add(self.next_id, prompt, max_output_tokens=2, priority=priority)
            self.next_id += 1
            self.one_step()

    @precondition(lambda self: self.driver.engine.has_work)
    @rule(count=st.integers(1, 6))
    def step(self, count):
        for _ in range(count):
            self.one_step()

    @precondition(lambda self: self.driver.engine.has_work)
    @rule(
        data=st.data(),
        messages=st.lists(
            st.sampled_from(["abort", "pause", "resume", "add", "clear"]), min_size=1, max_size=4
        ),
        fails=st.sampled_from([False, False, True]),
    )
    def step_during_which_messages_come(self, data, messages, fails):
        stopped = set()

        def between():
            EngineMachine.lost_results += self.take_messages(data, messages, stopped)

        self.driver.runner.fail_next_step = fails
        self.one_step(between, stopped)
        self.driver.runner.fail_next_step = False

    def take_messages(self, data, messages, stopped):
        """Returns how many sequences of the step in flight are stopped."""
        for message in messages:
            if message == "abort" and self.live():
                stopped.add(self.abort_one(data))
            elif message == "pause" and self.live():
                stopped.add(self.pause_one(data))
            elif message == "resume" and self.paused:
                self.resume_one(data)
            elif message == "add":
                self.driver.add(self.next_id, data.draw(st.sampled_from(PREFIXES)), max_output_tokens=3)
                self.next_id += 1
            elif message == "clear":
                self.driver.engine.clear_cache()
        return sum(sequence.sequence_id in stopped for sequence in self.plan.sequences)

    def one_step(self, between=lambda: None, stopped=frozenset()):
        """`between` is called in the middle of the step, and adds to `stopped` whom it stops."""
        EngineMachine.steps += 1
        scheduler = self.driver.engine._scheduler
        # A verification that finds no block to evict ends without a step.
        line = [one for one in (*scheduler.running, *scheduler.waiting) if one.sequence_id != VERIFICATION_ID]
        line.sort(key=lambda sequence: sequence.rank)
        best_ran = bool(line) and line[0].state is SequenceState.RUNNING
        report = self.driver.step(between)
        assert report.scheduled_tokens > 0 or not line, "there was work and none was done"
        if best_ran and line[0].sequence_id not in stopped:
            ends = (SequenceState.RUNNING, SequenceState.FINISHED)
            assert line[0].state in ends, "the best sequence was stopped"
        for update in report.updates:
            self.judge(update)

    def judge(self, update):
        driver, sequence_id = self.driver, update.sequence_id
        prompt, output = driver.prompts[sequence_id], driver.outputs[sequence_id]
        expected, _ = driver.expected(sequence_id)
        assert output == expected[: len(output)]
        if update.finish_reason == "error":
            culprit = NOT_FINITE_TOKEN_ID in prompt or EXPLODING_TOKEN_ID in prompt
            assert culprit or sequence_id in driver.runner.lost_sequence_ids
        elif update.finish_reason == "abort":
            assert sequence_id in self.aborted
        elif update.finish_reason:
            driver.assert_exact(sequence_id)
            EngineMachine.exact_sequences += 1

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def abort(self, data):
        self.abort_one(data)

    def abort_one(self, data):
        sequence_id = data.draw(st.sampled_from(self.live()))
        self.aborted.add(sequence_id)
        self.driver.engine.abort(sequence_id)
        return sequence_id

    @precondition(lambda self: len(self.driver.resident) > 6)
    @rule()
    def clear_cache(self):
        self.driver.engine.clear_cache()

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def pause(self, data):
        self.pause_one(data)

    def pause_one(self, data):
        sequence_id = data.draw(st.sampled_from(self.live()))
        self.paused.add(sequence_id)
        self.driver.engine.pause(sequence_id)
        EngineMachine.pauses += 1
        return sequence_id

    @precondition(lambda self: self.paused)
    @rule(data=st.data())
    def resume(self, data):
        self.resume_one(data)

    def resume_one(self, data):
        sequence_id = data.draw(st.sampled_from(sorted(self.paused)))
        self.paused.discard(sequence_id)
        self.driver.engine.resume(sequence_id)

    @precondition(lambda self: len(self.live()) > 2)
    @rule()
    def fail_the_next_execution(self):
        self.driver.runner.fail_next_step = True
        self.one_step()
        self.driver.runner.fail_next_step = False

    @precondition(lambda self: len(self.live()) > 2)
    @rule(largest=st.integers(1, 3))
    def run_short_of_memory(self, largest):
        self.driver.runner.largest_possible_batch = largest
        self.one_step()
        self.driver.runner.largest_possible_batch = 1_000_000

    # One more in a row, and the engine ends as it should.
    @precondition(lambda self: len(self.live()) > 4 and not self.driver.engine._failed_steps)
    @rule()
    def break_the_runner_for_one_step(self):
        self.driver.runner.broken = True
        self.one_step()
        self.driver.runner.broken = False

    def check_followers(self):
        """No running prefill gets a token before the leader of a better follower has all that it can use."""
        scheduler, planned = (
            self.driver.engine._scheduler,
            dict(zip(self.plan.sequences, self.plan.batch.chunks, strict=True)),
        )
        lines = [one for one in scheduler.waiting if one.state is SequenceState.WAITING]
        for follower in lines[: self.free_seats_before]:
            scheduler._update_match(follower)
            leader = scheduler._leader(follower)
            if leader is None or leader not in self.prefills_before or leader.inherited_rank is None:
                continue
            assert leader.effective_rank <= follower.rank
            EngineMachine.inherited_ranks += leader.inherited_rank < leader.rank
            got_all = leader in planned and len(planned[leader].token_ids) == leader.uncomputed_tokens
            for other in self.prefills_before:
                if other in planned and other is not leader and other.effective_rank > follower.rank:
                    assert got_all, "a follower waits for a sequence of worse rank"

    def teardown(self):
        driver = self.driver
        for sequence_id in self.paused:
            driver.engine.resume(sequence_id)
        for _ in range(2_000):
            if not driver.engine.has_work:
                break
            self.one_step()
        driver.check_idle()
        EngineMachine.preempted_sequences += driver.preempted_sequences
        EngineMachine.failed_executions += driver.failed_executions
        EngineMachine.evicted_blocks += driver.evicted_blocks
        EngineMachine.verified_blocks += driver.verified_blocks
        assert not driver.mismatched_blocks
        EngineMachine.cached_tokens += sum(driver.cached_tokens.values())
        EngineMachine.partial_prefills += driver.runner.counters.partial_prefills
        EngineMachine.largest_batch = max(EngineMachine.largest_batch, driver.runner.counters.largest_batch)


def test_the_engine_is_exact_and_loses_nothing_over_thousands_of_steps():
    run_state_machine_as_test(
        EngineMachine,
        settings=settings(
            max_examples=150,
            stateful_step_count=45,
            suppress_health_check=list(HealthCheck),
        ),
    )

    assert EngineMachine.steps >= 2_000
    assert EngineMachine.exact_sequences > 100
    assert EngineMachine.preempted_sequences > 0
    assert EngineMachine.evicted_blocks > 0
    assert EngineMachine.cached_tokens > 0
    assert EngineMachine.verified_blocks > 0
    assert EngineMachine.partial_prefills > 0
    assert EngineMachine.failed_executions > 0
    assert EngineMachine.pauses > 0
    assert EngineMachine.inherited_ranks > 0
    assert EngineMachine.largest_batch > 2
    assert EngineMachine.lost_results > 0
