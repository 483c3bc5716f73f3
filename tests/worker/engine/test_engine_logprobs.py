"""Log probabilities through the engine: reported once, for all chunks, batches and preemptions."""

from array import array

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_contracts.cache.kv_events import LoadReport
from warmfleet_contracts.errors import ContractError
from warmfleet_testing.engine.fake_runner import EngineDriver, naive_prompt_logprobs
from warmfleet_worker.engine.logprobs import TokenLogprobs, joined
from warmfleet_worker.engine.messages import (
    SequenceUpdate,
    StepReport,
    decode_engine_message,
    encode_message,
)

PROMPT = [(7 * index) % 500 for index in range(45)]


def scoring(**more: object) -> dict[str, object]:
    return {"prompt_logprobs": 2, "logprobs": 1, "may_read_cache": False, **more}


@settings(max_examples=25)
@given(
    budget=st.integers(1, 60),
    tokens=st.lists(st.integers(1, 50), min_size=1, max_size=4),
    output_tokens=st.sampled_from([0, 1, 5]),
)
def test_every_token_of_a_prompt_is_scored_once_in_any_chunks(budget, tokens, output_tokens):
    driver = EngineDriver(max_batched_tokens=budget)
    for number, length in enumerate(tokens):
        driver.add(number, PROMPT[:length], max_output_tokens=output_tokens, **scoring())
    driver.run()

    for number, length in enumerate(tokens):
        if length > 1:
            assert driver.prompt_logprobs[number] == naive_prompt_logprobs(PROMPT[:length], 2)
        else:
            assert number not in driver.prompt_logprobs
        assert len(driver.outputs[number]) == output_tokens
        if output_tokens:
            assert driver.logprobs[number].tokens == output_tokens
    driver.assert_exact(*range(len(tokens)))


def test_a_scored_prompt_reads_no_block_and_leaves_its_own_behind():
    driver = EngineDriver()
    driver.add(0, PROMPT)
    driver.run()

    driver.add(1, PROMPT, **scoring())
    driver.run()
    driver.engine.clear_cache()
    driver.add(2, PROMPT, **scoring())
    driver.run()
    driver.add(3, PROMPT)
    driver.run()

    assert [driver.cached_tokens[number] for number in range(4)] == [0, 0, 0, 44]
    assert len({driver.last_blocks[number] for number in range(4)}) == 1
    driver.assert_exact(0, 1, 2, 3)


def test_a_follower_takes_the_blocks_of_a_prompt_that_is_being_scored():
    driver = EngineDriver(max_batched_tokens=16)
    driver.add(0, PROMPT, **scoring())
    driver.step()
    driver.add(1, PROMPT)
    driver.run()

    assert driver.cached_tokens == {0: 0, 1: 44}
    assert driver.prompt_logprobs[0] == naive_prompt_logprobs(PROMPT, 2)
    driver.assert_exact(0, 1)


def test_preempted_and_resumed_nothing_is_scored_twice():
    # given a pool that two growing sequences cannot share to the end
    driver = EngineDriver(total_blocks=16, max_batched_tokens=20)
    for number in range(2):
        driver.add(number, PROMPT[number : number + 24], max_output_tokens=30, **scoring())
    driver.run()

    assert driver.preempted_sequences > 0
    for number in range(2):
        assert driver.prompt_logprobs[number] == naive_prompt_logprobs(PROMPT[number : number + 24], 2)
        assert driver.logprobs[number].tokens == 30
    # The second time even the scored prompt comes from the cache, as far as it is still there.
    assert driver.runner.counters.scored_tokens == 2 * 23
    driver.assert_exact(0, 1)


def test_only_sequences_that_ask_are_scored():
    driver = EngineDriver()
    driver.add(0, PROMPT)
    driver.add(1, PROMPT[1:], logprobs=0)
    driver.run()

    assert driver.runner.counters.scored_tokens == 0
    assert driver.logprobs.keys() == {1}
    assert not driver.prompt_logprobs


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
@pytest.mark.parametrize("value", [-1, 21, 2**63, -(2**63)])
def test_a_count_that_the_server_should_have_refused_ends_its_own_sequence_alone(field, value):
    driver = EngineDriver()
    driver.add(0, PROMPT, may_read_cache=False, **{field: value})
    driver.add(1, PROMPT)
    driver.run()

    assert driver.finish_reasons[0] == "refused"
    assert "0 to 20" in driver.errors[0]
    driver.assert_exact(1)


def test_a_prompt_that_is_to_be_scored_from_the_cache_is_refused():
    driver = EngineDriver()
    driver.add(0, PROMPT, prompt_logprobs=1)
    driver.run()

    assert driver.finish_reasons[0] == "refused"


# The message.

floats = st.floats(width=32, allow_nan=False)


def logprobs_of(values: list[float], top: int) -> TokenLogprobs:
    count = len(values) * top
    return TokenLogprobs(
        top,
        array("f", values).tobytes(),
        array("I", range(count)).tobytes(),
        array("f", values * top).tobytes(),
    )


@given(st.lists(floats, max_size=20), st.lists(floats, max_size=20), st.integers(0, 20))
def test_what_goes_over_the_socket_comes_back_and_joins(first, second, top):
    one, two = logprobs_of(first, top), logprobs_of(second, top)
    report = StepReport(load=LoadReport(), updates=[SequenceUpdate(sequence_id=1, logprobs=one)])

    received = decode_engine_message(encode_message(report)[4:])

    assert received == report
    both = joined(one, two)
    assert [token.logprob for token in both] == first + second
    assert list(both) == list(one) + list(two)
    assert [list(part) for part in both.split()] == [[token] for token in both]
    assert joined(None, one) == joined(one, None) == one


@pytest.mark.parametrize(
    "broken",
    [
        [21, b"\0" * 4, b"\0" * 84, b"\0" * 84],
        [-1, b"", b"", b""],
        [1, b"\0" * 4, b"\0" * 8, b"\0" * 4],
        [1, b"\0" * 4, b"\0" * 4, b""],
        [0, b"\0" * 3, b"", b""],
        ["1", b"", b"", b""],
    ],
)
def test_log_probabilities_that_do_not_fit_together_are_no_message(broken):
    report = msgspec.to_builtins(StepReport(load=LoadReport()))
    report["updates"] = [{"sequence_id": 1, "logprobs": broken}]

    with pytest.raises(ContractError, match="malformed message from the engine"):
        decode_engine_message(msgspec.msgpack.encode(report))
