"""The engine core over a runner without a model: exact in every way of computing, and honest in its reports.

`EngineDriver` checks after every step that blocks add up, that no writable block has two holders and that
the reported events, replayed into a plain set, are what is resident.
"""

import pytest
from structlog.testing import capture_logs

from warmfleet_contracts.cache.blocks import CacheIdentity, block_hashes, block_root
from warmfleet_contracts.cache.kv_events import MAX_REPORTED_ROUTERS
from warmfleet_testing.engine.add_messages import add_sequence
from warmfleet_testing.engine.fake_runner import (
    EngineDriver,
    naive_output,
)
from warmfleet_worker.engine.sampling_params import SamplingParameters

PROMPT = [(7 * index) % 500 for index in range(45)]
LONG = 60


def prompt_of(tokens, first=0):
    return [(first + index) % 500 for index in range(tokens)]


def message(sequence_id, prompt, **fields):
    sampling = SamplingParameters(temperature=0.0, max_output_tokens=4)
    return add_sequence(sequence_id, prompt, sampling=sampling, **fields)


@pytest.fixture(autouse=True)
def log():
    """What the engine logs; formatting thousands of tracebacks would be most of the time."""
    with capture_logs() as entries:
        yield entries


# The same tokens, however they are computed.


@pytest.fixture(scope="module")
def alone():
    driver = EngineDriver(max_batched_tokens=1000)
    driver.add(0, PROMPT, max_output_tokens=LONG)
    driver.run()
    driver.assert_exact(0)
    assert driver.runner.counters.largest_batch == 1
    assert driver.runner.counters.partial_prefills == 0
    assert driver.preempted_sequences == 0
    return driver.outputs[0]


def test_in_a_batch_it_generates_what_it_generates_alone(alone):
    driver = EngineDriver(total_blocks=300, max_batched_tokens=1000)
    for sequence_id in range(8):
        driver.add(
            sequence_id,
            PROMPT if sequence_id == 3 else prompt_of(20, first=50 * sequence_id),
            max_output_tokens=LONG,
        )
    driver.run()

    assert driver.runner.counters.largest_batch == 8
    assert driver.outputs[3] == alone
    driver.assert_exact(*range(8))


@pytest.mark.parametrize("budget", [1, 3, 4, 7, 16, 44])
def test_in_chunks_of_any_size_it_generates_what_it_generates_at_once(alone, budget):
    driver = EngineDriver(max_batched_tokens=budget)
    driver.add(0, PROMPT, max_output_tokens=LONG)
    driver.run()

    assert driver.runner.counters.partial_prefills == (len(PROMPT) - 1) // budget
    assert driver.outputs[0] == alone


def test_preempted_and_resumed_it_reports_every_token_once(alone):
    driver = EngineDriver(total_blocks=32)
    driver.add(1, prompt_of(40), max_output_tokens=70)
    driver.add(0, PROMPT, max_output_tokens=LONG)
    victims = set()
    while driver.engine.has_work:
        preempted = driver.step().preempted_sequences
        if preempted:
            victims |= {sequence.sequence_id for sequence in driver.engine._scheduler.waiting}

    assert 0 in victims
    assert driver.outputs[0] == alone
    driver.assert_exact(1)


def test_with_a_prefix_from_the_cache_it_generates_what_it_generates_cold(alone):
    driver = EngineDriver()
    driver.add(1, PROMPT, max_output_tokens=1)
    driver.run()
    driver.add(0, PROMPT, max_output_tokens=LONG)
    driver.run()

    assert driver.cached_tokens == {1: 0, 0: 44}
    assert driver.outputs[0] == alone


def test_without_the_cache_it_generates_what_it_generates_with_it(alone):
    driver = EngineDriver()
    driver.add(1, PROMPT, max_output_tokens=1)
    driver.run()
    driver.add(0, PROMPT, max_output_tokens=LONG, use_prefix_cache=False)
    driver.run()

    assert driver.cached_tokens[0] == 0
    assert driver.outputs[0] == alone


# What is cached, and for which sequences.


def test_an_answer_fed_back_is_cached_up_to_its_last_full_block():
    driver = EngineDriver()
    driver.add(1, prompt_of(10), max_output_tokens=15)
    driver.run()
    spoken = [*driver.prompts[1], *driver.outputs[1]]

    driver.add(2, [*spoken, *prompt_of(6, first=300)])
    driver.run()

    # The last of the 25 tokens was generated, never computed.
    assert driver.cached_tokens[2] == 24
    driver.assert_exact(2)


def test_other_salts_never_hit_each_other():
    driver = EngineDriver()
    for sequence_id, salt in enumerate([b"one", b"two", b"one", b""]):
        driver.add(sequence_id, prompt_of(21), salt=salt)
        driver.run()

    assert driver.cached_tokens == {0: 0, 1: 0, 2: 20, 3: 0}
    driver.assert_exact(0, 1, 2, 3)


def test_a_request_without_the_cache_reads_nothing_and_leaves_nothing():
    driver = EngineDriver()
    driver.add(1, prompt_of(21), use_prefix_cache=False)
    driver.run()

    assert not driver.resident
    driver.add(2, prompt_of(21))
    driver.run()
    driver.add(3, prompt_of(21), use_prefix_cache=False)
    driver.run()
    assert driver.cached_tokens == {1: 0, 2: 0, 3: 0}


@pytest.mark.parametrize("options", [{"window_tokens": 64}, {"prefix_caching": False}])
def test_a_sliding_window_or_the_setting_turns_the_cache_off_visibly(options):
    driver = EngineDriver(**options)
    for sequence_id in (1, 2):
        driver.add(sequence_id, prompt_of(21))
        driver.run()

    assert not driver.engine.prefix_caching
    assert driver.cached_tokens == {1: 0, 2: 0}
    assert not driver.resident
    driver.assert_exact(1, 2)


@pytest.mark.parametrize("use_prefix_cache", [True, False])
@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 8, 11])
def test_the_admission_names_the_last_full_block_of_the_prompt(tokens, use_prefix_cache):
    driver = EngineDriver()
    prompt = prompt_of(tokens)
    driver.add(1, prompt, salt=b"salt", use_prefix_cache=use_prefix_cache)
    driver.run()

    root = block_root(CacheIdentity(b"identity-of-test"), salt=b"salt")
    hashes = block_hashes(root, prompt, 4)
    assert driver.last_blocks[1] == (hashes[-1] if hashes else b"")


def test_a_prompt_repeated_at_a_block_edge_leaves_one_copy():
    driver = EngineDriver()
    for sequence_id in range(5):
        driver.add(sequence_id, prompt_of(16), max_output_tokens=1)
        driver.run()

    assert driver.cached_tokens == {0: 0, 1: 12, 2: 12, 3: 12, 4: 12}
    assert len(driver.resident) == driver.engine.report().load.cached_blocks == 4


def test_clearing_the_cache_spares_what_a_live_sequence_holds():
    driver = EngineDriver()
    driver.add(1, prompt_of(20), max_output_tokens=1)
    driver.run()
    driver.add(2, prompt_of(20, first=100), max_output_tokens=10)
    driver.step()

    driver.engine.clear_cache()
    report = driver.step()

    assert report.cleared
    assert len(report.stored) == 5
    driver.run()
    driver.add(3, prompt_of(20))
    driver.add(4, prompt_of(20, first=100))
    driver.run()
    assert (driver.cached_tokens[3], driver.cached_tokens[4]) == (0, 16)
    driver.assert_exact(2, 3, 4)


def test_clearing_an_idle_cache_is_reported_by_the_next_step():
    driver = EngineDriver()
    driver.add(1, prompt_of(20), max_output_tokens=1)
    driver.run()
    seq = driver.engine.report().seq

    driver.engine.clear_cache()
    assert driver.engine.has_work
    assert driver.engine.report().seq == seq
    report = driver.step()

    assert report.seq == seq + 1
    assert report.cleared
    assert not driver.engine.has_work


# What can never run, and what goes wrong.


def test_a_prompt_larger_than_the_pool_is_refused_with_both_sizes():
    driver = EngineDriver(total_blocks=5, max_model_length_tokens=1000)
    driver.add(1, prompt_of(20))
    driver.add(2, prompt_of(19), max_output_tokens=9)
    driver.run()

    assert driver.finish_reasons == {1: "refused", 2: "length"}
    assert driver.errors[1] == "the request needs 6 KV blocks (21 tokens), the whole cache has 5 (20 tokens)"
    assert 1 not in driver.cached_tokens
    driver.assert_exact(2)


def test_a_prompt_larger_than_the_context_is_refused_in_the_words_clients_match():
    driver = EngineDriver(max_model_length_tokens=30)
    driver.add(1, prompt_of(30))
    driver.run()

    assert driver.errors[1].startswith("maximum context length is 30 tokens")


@pytest.mark.parametrize("prompt", [[], [2**32 - 1], [1000], [5, 2**31]])
def test_an_invalid_prompt_is_refused_without_effect_on_others(prompt):
    driver = EngineDriver()
    driver.add(1, prompt)
    driver.add(2, prompt_of(5))
    driver.run()

    assert driver.finish_reasons[1] == "refused"
    driver.assert_exact(2)


def test_the_engine_keeps_a_bounded_number_of_waiting_sequences():
    driver = EngineDriver(max_running_sequences=1, max_waiting_sequences=3)
    for sequence_id in range(5):
        driver.add(sequence_id, prompt_of(5, first=10 * sequence_id))
    driver.run()

    assert [driver.finish_reasons[n] for n in range(5)] == ["length"] * 3 + ["busy"] * 2


def test_a_reused_sequence_id_does_not_disturb_the_first():
    driver = EngineDriver()
    driver.add(1, prompt_of(5))
    driver.step()
    driver.engine.add(message(1, prompt_of(9)))
    driver.run()

    driver.assert_exact(1)


def test_an_aborted_sequence_is_gone_before_the_next_step():
    driver = EngineDriver(max_running_sequences=1)
    driver.add(1, prompt_of(20), max_output_tokens=50)
    driver.add(2, prompt_of(20, first=100), max_output_tokens=50)
    driver.step()

    driver.engine.abort(1)
    driver.engine.abort(2)
    driver.engine.abort(77)

    assert driver.engine.report().load.pinned_blocks == 0
    assert driver.engine.has_work
    driver.step()
    assert driver.finish_reasons == {1: "abort", 2: "abort"}
    assert not driver.engine.has_work


# The load report.


def test_the_load_report_counts_sequences_tokens_and_blocks():
    driver = EngineDriver(total_blocks=20, max_running_sequences=2, max_batched_tokens=16)
    driver.add(1, prompt_of(10), max_output_tokens=20)
    driver.add(2, prompt_of(30, first=100), max_output_tokens=20)
    driver.add(3, prompt_of(25, first=200), max_output_tokens=20)

    load = driver.step().load

    assert (load.running_sequences, load.waiting_sequences, load.max_running_sequences) == (2, 1, 2)
    assert load.queued_uncached_tokens == (30 - 6) + 25
    assert load.context_tokens == 10 + 6
    assert (load.total_blocks, load.pinned_blocks, load.cached_blocks) == (20, 3 + 8, 0)
    assert load.step_time.samples == 1
    assert not load.draining
    driver.run()
    load = driver.engine.report().load
    assert (load.running_sequences, load.queued_uncached_tokens, load.pinned_blocks) == (0, 0, 0)
    assert load.cached_blocks == len(driver.resident) > 0


def test_a_waiting_prompt_counts_only_what_is_not_cached():
    driver = EngineDriver(max_running_sequences=1)
    driver.add(1, prompt_of(20), max_output_tokens=1)
    driver.run()
    driver.add(2, prompt_of(9, first=100))
    driver.add(3, [*prompt_of(20), 400, 401])

    assert driver.engine.report().load.queued_uncached_tokens == 9 + 2


def test_draining_is_reported_and_ends_nothing():
    driver = EngineDriver()
    driver.add(1, prompt_of(5))
    driver.engine.drain()

    assert driver.step().load.draining
    driver.run()
    driver.assert_exact(1)


def test_the_highest_dispatch_of_each_router_is_reported_for_a_bounded_number_of_routers():
    driver = EngineDriver()
    for sequence_id, dispatch in enumerate([3, 5, 4]):
        driver.engine.add(message(sequence_id, [1, 2], router_id="a", dispatch=dispatch))
    driver.engine.add(message(10, [1, 2], router_id="b", dispatch=1))
    driver.engine.add(message(11, [1, 2]))
    assert driver.engine.report().load.admitted_dispatches == {"a": 5, "b": 1}

    for number in range(MAX_REPORTED_ROUTERS - 1):
        driver.engine.add(message(100 + number, [1, 2], router_id=f"r{number}", dispatch=1))

    known = driver.engine.report().load.admitted_dispatches
    assert len(known) == MAX_REPORTED_ROUTERS
    assert "a" not in known
    assert "b" in known


def test_a_dispatch_is_open_while_a_sequence_of_it_runs_or_waits():
    driver = EngineDriver(max_running_sequences=2)
    for sequence_id, (router_id, dispatch) in enumerate([("a", 1), ("a", 1), ("a", 2), ("b", 1), ("", 0)]):
        driver.engine.add(message(sequence_id, [1, 2], router_id=router_id, dispatch=dispatch))

    def known():
        load = driver.engine.report().load
        return load.running_sequences, load.waiting_sequences, load.open_dispatches

    before = known()
    driver.engine.abort(1)
    one_left = known()
    driver.engine.abort(0)
    ended = known()
    driver.engine.step()
    running = known()
    for sequence_id in (2, 3, 4):
        driver.engine.abort(sequence_id)

    assert before == (0, 5, {"a": 2, "b": 1})
    assert one_left == (0, 4, {"a": 2, "b": 1})
    assert ended == (0, 3, {"a": 1, "b": 1})
    assert running == (2, 1, {"a": 1, "b": 1})
    assert known() == (0, 0, {})


def test_a_refused_sequence_counts_as_admitted_dispatch_too():
    driver = EngineDriver()
    driver.engine.add(message(1, [], router_id="a", dispatch=9))

    assert driver.engine.report().load.admitted_dispatches == {"a": 9}


def test_the_naive_oracle_ends_for_each_reason():
    endless = SamplingParameters(temperature=0.0, max_output_tokens=50)
    output, reason = naive_output([1, 2, 3], endless)
    assert (len(output), reason) == (50, "length")

    stopping = SamplingParameters(max_output_tokens=50, stop_token_ids=frozenset({output[7]}))
    assert naive_output([1, 2, 3], stopping) == (output[:8], "stop")
    assert naive_output([1, 2, 3], endless, limit_tokens=5) == (output[:2], "length")
