"""When a client disconnects, its blocks are free before the next step, without effect on others."""

import pytest

from warmfleet_testing.engine.fake_runner import EngineDriver


def prompt_of(tokens, first=0):
    return [(first + index) % 500 for index in range(tokens)]


def in_queue(driver):
    driver.add(1, prompt_of(9, first=300), max_output_tokens=400)
    driver.step()
    driver.add(0, prompt_of(4000))
    driver.step()


def in_a_chunked_prefill(driver):
    driver.add(0, prompt_of(4000))
    for _ in range(5):
        driver.step()
    assert len(driver.engine._scheduler.running[0].table) > 0
    assert not driver.outputs[0]


def in_decode(driver):
    driver.add(0, prompt_of(100), max_output_tokens=400)
    while len(driver.outputs[0]) < 20:
        driver.step()


def paused(driver):
    in_decode(driver)
    driver.engine.pause(0)


@pytest.mark.parametrize("reach", [in_queue, in_a_chunked_prefill, in_decode, paused])
def test_a_client_that_leaves_gives_everything_back_at_once(reach):
    seats = 1 if reach is in_queue else 8
    driver = EngineDriver(
        total_blocks=1200, max_batched_tokens=64, max_model_length_tokens=4400, max_running_sequences=seats
    )
    reach(driver)
    others = [one for one in driver.prompts if one]
    held = {one.sequence_id: len(one.table) for one in driver.engine._scheduler.running}

    driver.engine.abort(0)

    load = driver.engine.report().load
    assert load.pinned_blocks == sum(blocks for one, blocks in held.items() if one)
    assert load.running_sequences == len(others)
    assert load.waiting_sequences == driver.engine.report().paused_sequences == 0
    driver.run()
    assert driver.finish_reasons[0] == "abort"
    driver.assert_exact(*others)
