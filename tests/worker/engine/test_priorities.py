"""Which sequences run first and are preempted; a leader inherits the rank of its followers."""

from warmfleet_testing.engine.fake_runner import EngineDriver


def prompt_of(tokens, first=0):
    return [(first + index) % 500 for index in range(tokens)]


def chunk_lengths(driver):
    return {chunk.sequence_id: len(chunk.token_ids) for chunk in driver.runner.batches[-1].chunks}


def ids(sequences):
    return [sequence.sequence_id for sequence in sequences]


def test_the_waiting_start_by_priority_and_then_by_arrival():
    driver = EngineDriver(max_running_sequences=1)
    for sequence_id, priority in enumerate([0, 5, -3, 5, -3, 0]):
        driver.add(sequence_id, prompt_of(6, first=40 * sequence_id), priority=priority)
    started = []
    while driver.engine.has_work:
        driver.step()
        started += [one for one in driver.cached_tokens if one not in started]

    assert started == [2, 4, 0, 5, 1, 3]
    driver.assert_exact(*range(6))


def test_equal_priorities_of_any_number_run_in_order_of_arrival():
    orders = []
    for priority in (-100, 0, 100):
        driver = EngineDriver(total_blocks=8, max_running_sequences=3)
        for sequence_id in range(6):
            prompt = prompt_of(6, first=50 * sequence_id)
            driver.add(sequence_id, prompt, max_output_tokens=14, priority=priority)
        driver.run()
        assert driver.preempted_sequences > 0
        orders.append(list(driver.finish_reasons))
        driver.assert_exact(*range(6))

    assert orders[0] == orders[1] == orders[2]


def test_the_victim_is_the_worst_by_priority_and_not_the_youngest():
    driver = EngineDriver(total_blocks=8)
    for sequence_id, priority in ((1, 9), (2, 0), (3, -9)):
        prompt = prompt_of(6, first=50 * sequence_id)
        driver.add(sequence_id, prompt, max_output_tokens=14, priority=priority)

    while not driver.preempted_sequences:
        driver.step()

    assert ids(driver.engine._scheduler.waiting) == [1]
    driver.run()
    assert list(driver.finish_reasons) == [3, 2, 1]
    driver.assert_exact(1, 2, 3)


def test_a_better_prompt_does_not_wait_for_a_worse_one_that_has_begun():
    driver = EngineDriver(max_batched_tokens=16)
    driver.add(1, prompt_of(40), priority=5)
    driver.step()
    driver.add(2, prompt_of(20, first=100), max_output_tokens=20)

    driver.step()
    assert chunk_lengths(driver) == {2: 16}
    driver.step()
    assert chunk_lengths(driver) == {2: 4, 1: 12}

    driver.run()
    driver.assert_exact(1, 2)


def test_a_better_follower_brings_its_leader_before_others():
    # given a leader that stands behind another prefill
    driver = EngineDriver(max_batched_tokens=8, total_blocks=200)
    driver.add(1, prompt_of(60), max_output_tokens=1, priority=9)
    driver.step()
    driver.add(2, prompt_of(60, first=100), max_output_tokens=1, priority=5)
    driver.step()
    assert chunk_lengths(driver) == {2: 8}

    # when a sequence better than both waits for what the leader computes
    driver.add(3, prompt_of(60), max_output_tokens=1, priority=-1)
    driver.step()

    # then the leader runs in its place, and the follower starts before the other goes on
    assert chunk_lengths(driver) == {1: 8}
    driver.run()
    assert list(driver.finish_reasons) == [3, 2, 1], "the leader's own last tokens have its own rank"
    assert driver.cached_tokens[3] == 56
    driver.assert_exact(1, 2, 3)


def test_a_leader_stands_in_its_own_place_again_when_its_follower_leaves():
    driver = EngineDriver(max_batched_tokens=8, total_blocks=200)
    driver.add(2, prompt_of(60), max_output_tokens=1, priority=9)
    driver.step()
    driver.add(3, prompt_of(60), max_output_tokens=1, priority=-1)
    driver.step()
    (leader,) = driver.engine._scheduler.running
    assert leader.effective_rank == (-1, 1)

    driver.engine.abort(3)
    driver.step()

    assert leader.effective_rank == leader.rank == (9, 0)
    driver.run()
    driver.assert_exact(2)


def test_a_follower_takes_over_from_a_leader_that_is_preempted_and_is_not_held_up_by_it():
    # given a bad leader in prefill, a better one that decodes, and a pool that the decode fills
    driver = EngineDriver(total_blocks=15, max_batched_tokens=3)
    driver.add(1, prompt_of(8, first=100), max_output_tokens=20, priority=-5)
    while not driver.outputs[1]:
        driver.step()
    driver.add(2, prompt_of(40), max_output_tokens=1, priority=50)
    driver.step()
    assert chunk_lengths(driver) == {1: 1, 2: 2}
    driver.add(3, prompt_of(40), max_output_tokens=1, priority=0)
    while not driver.preempted_sequences:
        driver.step()
        assert 1 not in driver.finish_reasons
    assert ids(driver.engine._scheduler.waiting) == [3, 2], "the follower stands before its old leader"

    driver.run()

    assert list(driver.finish_reasons) == [1, 3, 2]
    assert driver.cached_tokens[3] > 0, "what the leader had committed is not lost"
    driver.assert_exact(1, 2, 3)


def test_a_follower_takes_over_from_a_leader_that_is_paused():
    driver = EngineDriver(max_batched_tokens=8)
    driver.add(1, prompt_of(40), max_output_tokens=2)
    driver.add(2, prompt_of(40), max_output_tokens=2)
    driver.step()

    driver.engine.pause(1)
    driver.step()

    assert chunk_lengths(driver) == {2: 8}
    while 2 not in driver.finish_reasons:
        driver.step()
    driver.engine.resume(1)
    driver.run()
    driver.assert_exact(1, 2)


def test_a_seat_and_blocks_are_kept_for_a_follower():
    # given two seats, a leader, and a follower before a sequence of worse rank
    driver = EngineDriver(max_running_sequences=2, max_batched_tokens=16)
    driver.add(1, prompt_of(12), max_output_tokens=30)
    driver.add(2, prompt_of(12), max_output_tokens=3)
    driver.add(3, prompt_of(2, first=300), max_output_tokens=60)

    # when there is budget left that only the third could use
    driver.step()
    assert chunk_lengths(driver) == {1: 12}

    # then the second has its seat as soon as its block is there
    driver.step()
    assert chunk_lengths(driver) == {1: 1, 2: 4}
    driver.run()
    assert list(driver.finish_reasons) == [2, 1, 3]
    driver.assert_exact(1, 2, 3)


def test_a_follower_waits_for_as_many_steps_as_its_leader_computes_and_no_more():
    driver = EngineDriver(max_batched_tokens=8, total_blocks=400, max_running_sequences=8)
    driver.add(0, prompt_of(64), max_output_tokens=1, priority=50)
    driver.step()
    driver.add(1, prompt_of(64), max_output_tokens=1, priority=-50)
    for other in range(2, 12):  # better than the leader, worse than the follower
        driver.add(other, prompt_of(64, first=30 * other), max_output_tokens=1)

    steps = 0
    while 1 not in driver.cached_tokens:
        driver.step()
        steps += 1

    assert steps == 8
    driver.run()
    driver.assert_exact(*range(12))
