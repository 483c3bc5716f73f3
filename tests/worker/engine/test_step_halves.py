"""The two halves of a step: what happens while one computes, and results of several tokens."""

import socket
from contextlib import closing

import pytest

from warmfleet_testing.engine.add_messages import add_sequence
from warmfleet_testing.engine.fake_runner import EngineDriver, naive_logprobs, naive_output
from warmfleet_worker.engine.messages import (
    AbortSequence,
    PauseSequence,
    ResumeSequence,
    StepReport,
    decode_engine_message,
    encode_message,
    message_reader,
)
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine_process import ServerChannel, ServerGoneError, serve


def prompt_of(tokens, first=0):
    return [(first + index) % 500 for index in range(tokens)]


def test_a_sequence_aborted_while_a_step_computes_it_gets_nothing_of_the_step():
    driver = EngineDriver()
    driver.add(1, prompt_of(9))
    driver.add(2, prompt_of(9, first=100))
    driver.step()

    driver.step(lambda: driver.engine.abort(1))

    assert driver.finish_reasons == {1: "abort"}
    assert len(driver.outputs[1]) == 1
    driver.run()
    driver.assert_exact(2)


def test_the_end_of_a_sequence_aborted_in_its_first_step_comes_with_its_admission():
    driver = EngineDriver()
    driver.add(1, prompt_of(9))

    report = driver.step(lambda: driver.engine.abort(1))

    (update,) = report.updates
    assert (update.cached_tokens, update.finish_reason, update.token_ids) == (0, "abort", [])


def test_a_sequence_paused_and_resumed_while_a_step_computes_it_loses_no_token():
    driver = EngineDriver()
    driver.add(1, prompt_of(9))
    driver.step()

    def between():
        driver.engine.pause(1)
        driver.engine.resume(1)

    driver.step(between)

    assert len(driver.outputs[1]) == 1
    driver.run()
    driver.assert_exact(1)


def test_a_sequence_added_while_a_step_computes_is_in_the_next_one():
    driver = EngineDriver()
    driver.add(1, prompt_of(9))

    driver.step(lambda: driver.add(2, prompt_of(9)))

    driver.step()
    assert [chunk.sequence_id for chunk in driver.runner.batches[-1].chunks] == [1, 2]
    driver.run()
    driver.assert_exact(1, 2)
    assert driver.cached_tokens[2] == 8


@pytest.mark.parametrize("tokens_per_step", [2, 3, 7])
def test_several_tokens_of_a_step_are_an_answer_up_to_its_end(tokens_per_step):
    driver = EngineDriver()
    driver.runner.tokens_per_step = tokens_per_step
    driver.add(1, prompt_of(9), max_output_tokens=20, logprobs=2)
    driver.add(2, prompt_of(9, first=100), max_output_tokens=20)
    output, _ = naive_output(prompt_of(9, first=200), SamplingParameters(max_output_tokens=20))
    driver.add(3, prompt_of(9, first=200), max_output_tokens=20, stop_token_ids=frozenset(output[4:5]))

    driver.run()

    driver.assert_exact(1, 2, 3)
    assert driver.runner.counters.steps <= 1 + 20 // tokens_per_step
    assert driver.logprobs[1].tokens == 20
    single = EngineDriver()
    single.add(1, prompt_of(9), max_output_tokens=20, logprobs=2)
    single.run()
    assert driver.logprobs[1] == single.logprobs[1]


def test_the_first_log_probabilities_of_several_are_those_of_their_tokens():
    pairs = [((1, 2), 3), ((1, 2, 3), 4), ((1, 2, 3, 4), 5)]
    together = naive_logprobs(pairs, 2)

    assert together.first(2) == naive_logprobs(pairs[:2], 2)
    assert together.first(3) is together
    assert together.first(0).tokens == 0


class Wire:
    """The server's end of an engine's socket, read without waiting."""

    def __init__(self):
        self.ours, theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.channel = ServerChannel(theirs)
        self.theirs = theirs
        self._frames = message_reader()

    def close(self):
        self.ours.close()
        self.theirs.close()

    def send(self, message):
        self.ours.send(encode_message(message))

    def reports(self) -> list[StepReport]:
        try:
            data = self.ours.recv(1_000_000)
        except BlockingIOError:
            return []
        return [decode_engine_message(body) for body in self._frames.feed(data)]


def serve_one(driver, wire, output_tokens, when_idle):
    """Serve a sequence until the server is gone; `when_idle` is called before each wait after a step."""
    receive = wire.channel.receive

    def receive_when_idle(timeout_seconds):
        if not driver.engine.has_work and driver.runner.counters.steps:
            when_idle()
        return receive(timeout_seconds)

    wire.channel.receive = receive_when_idle
    sampling = SamplingParameters(temperature=0.0, max_output_tokens=output_tokens)
    wire.send(add_sequence(1, prompt_of(9), sampling))
    with pytest.raises(ServerGoneError):
        serve(driver.engine, wire.channel)


def test_the_report_of_a_step_is_there_before_the_next_step_begins():
    driver = EngineDriver()
    sent = []  # reports with tokens, by the time each step begins
    with closing(Wire()) as wire:
        begin = driver.runner.begin

        def look():
            sent.append(sum(len(report.updates) for report in wire.reports()))

        def begin_after_a_look(batch):
            look()
            return begin(batch)

        def look_and_end():
            look()
            wire.ours.close()

        driver.runner.begin = begin_after_a_look
        serve_one(driver, wire, 3, look_and_end)

    assert sent == [0, 1, 1, 1]
    assert driver.runner.violations == []


def test_a_pause_of_all_that_runs_while_a_step_computes_leaves_the_engine_waiting():
    driver = EngineDriver()
    with closing(Wire()) as wire:
        finish = driver.runner.finish

        def finish_and_pause(batch):
            result = finish(batch)
            if driver.runner.counters.steps == 2:
                wire.send(PauseSequence(sequence_id=1))
            return result

        waits = []

        def resume_or_end():
            waits.append(driver.runner.counters.steps)
            if len(waits) == 1:
                wire.send(ResumeSequence(sequence_id=1))
            else:
                wire.ours.close()

        driver.runner.finish = finish_and_pause
        serve_one(driver, wire, 5, resume_or_end)

    assert waits[0] == 2
    assert driver.runner.violations == []


def test_a_server_that_goes_while_a_step_computes_ends_the_engine_after_the_step():
    driver = EngineDriver()
    with closing(Wire()) as wire:
        begin = driver.runner.begin

        def begin_and_lose_the_server(batch):
            step = begin(batch)
            if driver.runner.counters.steps == 2:
                wire.ours.close()
            return step

        driver.runner.begin = begin_and_lose_the_server
        serve_one(driver, wire, 3, wire.ours.close)

    assert driver.runner.counters.steps == 2
    assert not driver.runner.is_computing


def test_an_abort_that_comes_while_a_step_computes_is_reported_with_it():
    driver = EngineDriver()
    ends = []
    with closing(Wire()) as wire:
        begin = driver.runner.begin

        def begin_and_abort(batch):
            step = begin(batch)
            if driver.runner.counters.steps == 2:
                wire.send(AbortSequence(sequence_id=1))
            return step

        driver.runner.begin = begin_and_abort

        def take_and_end():
            ends.extend(update for report in wire.reports() for update in report.updates)
            wire.ours.close()

        serve_one(driver, wire, 30, take_and_end)

    assert driver.runner.counters.steps == 2
    assert [(len(update.token_ids), update.finish_reason) for update in ends] == [(1, ""), (0, "abort")]
