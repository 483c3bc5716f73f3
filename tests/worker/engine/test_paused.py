"""A paused sequence holds nothing, and goes on as if nothing had been."""

from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_testing.engine.fake_runner import EngineDriver


def prompt_of(tokens, first=0):
    return [(first + index) % 500 for index in range(tokens)]


def pinned(driver):
    return driver.engine.report().load.pinned_blocks


def test_a_paused_sequence_gives_seat_and_blocks_to_others():
    driver = EngineDriver(max_running_sequences=1)
    driver.add(1, prompt_of(20), max_output_tokens=30)
    driver.add(2, prompt_of(20, first=100), max_output_tokens=3)
    driver.step()

    driver.engine.pause(1)
    assert pinned(driver) == 0
    report = driver.step()

    assert (report.load.running_sequences, report.load.waiting_sequences) == (1, 0)
    assert report.paused_sequences == 1
    while 2 not in driver.finish_reasons:
        driver.step()
    assert not driver.engine.has_work, "a paused sequence is no reason to step"
    assert driver.engine.report().paused_sequences == 1
    assert driver.outputs[1] == driver.expected(1)[0][:1]
    driver.engine.resume(1)
    driver.run()
    driver.assert_exact(1, 2)


def test_a_resumed_sequence_finds_its_blocks_in_the_cache_while_there_is_room():
    driver = EngineDriver(max_running_sequences=1)
    driver.add(1, prompt_of(20), max_output_tokens=9)
    for _ in range(3):
        driver.step()
    computed = driver.runner.counters.computed_tokens

    driver.engine.pause(1)
    driver.engine.resume(1)
    driver.step()

    # 22 tokens are computed, five blocks of four are committed: the rest and the newest one are computed.
    assert driver.runner.counters.computed_tokens - computed == 3
    driver.run()
    driver.assert_exact(1)


def test_a_resumed_sequence_stands_in_its_old_place():
    driver = EngineDriver(max_running_sequences=1)
    driver.add(1, prompt_of(9), max_output_tokens=9)
    driver.step()
    driver.engine.pause(1)
    for sequence_id in (2, 3):
        driver.add(sequence_id, prompt_of(9, first=50 * sequence_id), max_output_tokens=3)
    driver.step()
    driver.engine.resume(1)

    driver.run()

    assert list(driver.finish_reasons) == [2, 1, 3]
    driver.assert_exact(1, 2, 3)


def test_pausing_twice_resuming_what_runs_and_unknown_ids_change_nothing():
    driver = EngineDriver()
    driver.add(1, prompt_of(9), max_output_tokens=9)
    driver.step()

    driver.engine.resume(1)
    driver.engine.pause(77)
    driver.engine.resume(77)
    driver.engine.pause(1)
    driver.engine.pause(1)
    driver.engine.resume(1)
    driver.engine.resume(1)

    driver.run()
    driver.assert_exact(1)
    driver.engine.pause(1)
    assert driver.engine.report().load.waiting_sequences == 0


def test_paused_sequences_count_among_those_that_may_wait():
    driver = EngineDriver(max_waiting_sequences=3)
    for sequence_id in range(3):
        driver.add(sequence_id, prompt_of(5, first=10 * sequence_id))
        driver.engine.pause(sequence_id)
    driver.add(3, prompt_of(5, first=90))

    driver.step()
    assert driver.finish_reasons == {3: "busy"}
    for sequence_id in range(3):
        driver.engine.resume(sequence_id)
    driver.run()
    driver.assert_exact(0, 1, 2)


@settings(max_examples=60)
@given(
    breaks=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=12),
    total_blocks=st.integers(20, 40),
)
def test_however_often_it_is_paused_it_reports_every_token_once(breaks, total_blocks):
    driver = EngineDriver(total_blocks=total_blocks, max_batched_tokens=8)
    for sequence_id in range(4):
        driver.add(sequence_id, prompt_of(11, first=3 * sequence_id), max_output_tokens=16)

    for sequence_id, steps in breaks:
        driver.engine.pause(sequence_id)
        for _ in range(steps):
            if driver.engine.has_work:
                driver.step()
        driver.engine.resume(sequence_id)
    driver.run()

    driver.assert_exact(*range(4))
