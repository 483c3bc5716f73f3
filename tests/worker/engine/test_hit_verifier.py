"""`--verify-hits`: cached blocks are computed again when idle, and what differs is not served again."""

import pytest
from structlog.testing import capture_logs

from warmfleet_testing.engine.fake_runner import EngineDriver, FakeRunner
from warmfleet_worker.engine.engine import HitsNotVerifiable

BLOCK = 4


def prompt_of(tokens, first=0):
    return [(first + index) % 500 for index in range(tokens)]


def verifying(one_in=1, **settings):
    return EngineDriver(**{"total_blocks": 256, "verify_hits_one_in": one_in, **settings})


def ask(driver, sequence_id, prompt, **parameters):
    driver.add(sequence_id, prompt, max_output_tokens=1, **parameters)
    driver.run()


def flip_a_bit(driver, prompt, block, offset=0):
    """Of the cached block that holds these tokens."""
    cache = driver.engine._cache
    hashes = []
    cache.extend_hashes(hashes, cache.root(b""), prompt)
    driver.runner.flip_bit(driver.engine._pool.find(hashes[block]).block_id, offset)
    return hashes


def test_the_blocks_of_a_hit_are_computed_again_and_compared():
    driver = verifying()
    ask(driver, 1, prompt_of(40))
    computed_tokens = driver.runner.counters.computed_tokens
    ask(driver, 2, prompt_of(40))

    assert (driver.cached_tokens[2], driver.verified_blocks, driver.mismatched_blocks) == (36, 9, 0)
    assert driver.runner.counters.computed_tokens == computed_tokens + 4 + 36


def test_blocks_that_decodes_have_written_are_verified_too():
    driver = verifying(max_model_length_tokens=256)
    driver.add(1, prompt_of(7), max_output_tokens=30)
    driver.run()
    ask(driver, 2, [*prompt_of(7), *driver.outputs[1], 3])

    assert driver.cached_tokens[2] == driver.verified_blocks * BLOCK == 36
    assert driver.mismatched_blocks == 0


@pytest.mark.parametrize("block", [0, 4, 8])
@pytest.mark.parametrize("offset", [0, 3])
def test_a_flipped_bit_is_found_and_its_block_and_all_that_follow_are_not_served_again(block, offset):
    driver = verifying()
    ask(driver, 1, prompt_of(40))
    ask(driver, 2, [*prompt_of(20), *prompt_of(20, first=300)])
    hashes = flip_a_bit(driver, prompt_of(40), block, offset)

    with capture_logs() as entries:
        ask(driver, 3, prompt_of(40))

    assert driver.mismatched_blocks == 1
    (entry,) = (one for one in entries if one["log_level"] == "error")
    assert entry["block_hash"] == hashes[block].hex()
    assert driver.resident.isdisjoint(hashes[block:])
    assert driver.resident.issuperset(hashes[:block])
    ask(driver, 4, prompt_of(40))
    ask(driver, 5, [*prompt_of(20), *prompt_of(20, first=300)])
    driver.assert_exact(4, 5)
    assert driver.cached_tokens[4] == block * BLOCK
    assert driver.cached_tokens[5] == (36 if block >= 5 else 20)  # what it needed was computed again by 4
    assert driver.mismatched_blocks == 1


def test_a_sequence_that_reads_a_wrong_block_computes_its_context_again():
    driver = verifying(max_model_length_tokens=200, max_batched_tokens=0)
    driver.runner.flat_tokens = 64
    ask(driver, 1, prompt_of(40))
    flip_a_bit(driver, prompt_of(40), 2)

    # When the hit is verified beside a sequence that goes on from it
    driver.add(2, [*prompt_of(40), 7], max_output_tokens=150)
    driver.run()
    assert driver.mismatched_blocks == 1

    # Then nothing of what that one has computed from the wrong block is in the cache
    context = [*prompt_of(40), 7, *driver.outputs[2]]
    before = driver.verified_blocks
    ask(driver, 3, context)
    assert driver.cached_tokens[3] == (len(context) - 1) // BLOCK * BLOCK
    assert driver.mismatched_blocks == 1
    assert driver.verified_blocks > before
    driver.assert_exact(3)


def test_every_nth_hit_is_verified():
    driver = verifying(one_in=3)
    for sequence_id in range(10):
        ask(driver, sequence_id, prompt_of(40))

    assert driver.verified_blocks == 3 * 9


def test_one_hit_is_verified_at_a_time():
    driver = verifying(max_batched_tokens=8)
    ask(driver, 0, prompt_of(40))
    for sequence_id in range(1, 6):
        driver.add(sequence_id, [*prompt_of(39), 100 + sequence_id], max_output_tokens=1)
        driver.step()
    driver.run()

    assert driver.verified_blocks == 9


def test_a_verification_takes_a_sixteenth_of_the_pool_at_most():
    driver = verifying(total_blocks=64)
    ask(driver, 1, prompt_of(100))
    ask(driver, 2, prompt_of(100))

    assert driver.cached_tokens[2] == 96
    assert driver.verified_blocks == 4


def test_it_works_in_a_full_cache_and_evicts_what_is_oldest():
    driver = verifying(total_blocks=64)
    ask(driver, 0, prompt_of(16))
    for sequence_id in range(1, 4):
        ask(driver, sequence_id, prompt_of(76, first=100 * sequence_id))
    assert driver.engine._pool.free_blocks < 4
    oldest = set(driver.resident)
    ask(driver, 4, prompt_of(76, first=300))

    assert (driver.verified_blocks, driver.mismatched_blocks) == (4, 0)
    assert len(oldest - driver.resident) <= 4
    assert driver.cached_tokens[4] == 72


def test_a_request_takes_seat_and_blocks_of_a_verification_which_goes_on_afterwards():
    driver = verifying(max_batched_tokens=8, max_running_sequences=1)
    ask(driver, 1, prompt_of(40))
    driver.add(2, prompt_of(40), max_output_tokens=1)
    while driver.verified_blocks < 3:
        driver.step()
    driver.add(3, prompt_of(16, first=200), max_output_tokens=4)
    verified = driver.verified_blocks
    while 3 not in driver.finish_reasons:
        driver.step()
        assert driver.verified_blocks == verified
    driver.run()

    assert (driver.verified_blocks, driver.mismatched_blocks) == (9, 0)  # none was compared twice
    driver.assert_exact(2, 3)


def test_a_verification_is_no_load():
    driver = verifying(max_batched_tokens=8)
    ask(driver, 1, prompt_of(40))
    driver.add(2, prompt_of(40), max_output_tokens=1)
    driver.step()
    load = driver.step().load

    assert driver.engine.has_work
    assert (load.running_sequences, load.waiting_sequences, load.pinned_blocks) == (0, 0, 0)
    driver.run()


def test_a_verification_that_fails_ends_nothing_else():
    driver = verifying()
    ask(driver, 1, prompt_of(40))
    driver.add(2, prompt_of(40), max_output_tokens=1)
    driver.step()
    driver.runner.broken = True
    driver.step()
    driver.runner.broken = False
    driver.run()
    ask(driver, 3, prompt_of(40))

    assert (driver.verified_blocks, driver.mismatched_blocks) == (9, 0)
    driver.assert_exact(2, 3)


def test_a_runner_that_promises_no_equal_bits_is_not_verified(monkeypatch):
    monkeypatch.setattr(FakeRunner, "exact", False)
    with pytest.raises(HitsNotVerifiable, match="--verify-hits"):
        verifying()
