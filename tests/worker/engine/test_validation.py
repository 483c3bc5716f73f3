"""No sequence and no frame ends the engine: what cannot run is refused, what is no message is an error."""

import math
import socket
import threading

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from warmfleet_contracts.errors import ContractError
from warmfleet_contracts.openai.generation import Penalty, Probability, RepetitionPenalty, Temperature
from warmfleet_testing.engine.add_messages import add_sequence
from warmfleet_testing.engine.fake_runner import EngineDriver
from warmfleet_worker.engine.messages import (
    AddSequences,
    NewSequence,
    decode_engine_message,
    decode_server_message,
    encode_message,
    packed_tokens,
)
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine.validation import _RANGES
from warmfleet_worker.engine_process import ServerChannel, ServerGoneError, serve

INTEGERS = st.one_of(st.integers(-3, 40), st.sampled_from([-(2**63), 2**63 - 1, 2**64 - 1, 2**31, 10**6]))
FLOATS = st.one_of(
    st.floats(), st.sampled_from([0.0, 1.0, -1.0, 5e-324, 1e308, math.nan, math.inf, -math.inf])
)
SAMPLING = st.builds(
    SamplingParameters,
    temperature=FLOATS,
    top_p=FLOATS,
    top_k=INTEGERS,
    min_p=FLOATS,
    seed=INTEGERS,
    max_output_tokens=INTEGERS,
    min_output_tokens=INTEGERS,
    logit_bias=st.dictionaries(INTEGERS, FLOATS, max_size=3),
    presence_penalty=FLOATS,
    frequency_penalty=FLOATS,
    repetition_penalty=FLOATS,
    stop_token_ids=st.frozensets(INTEGERS, max_size=3),
    logprobs=st.none(),
    prompt_logprobs=st.none() | INTEGERS.filter(lambda top: not 0 <= top <= 20),
)
PLAUSIBLE = st.builds(SamplingParameters, max_output_tokens=st.integers(0, 5), top_k=INTEGERS)
U32 = st.integers(0, 2**32 - 1)
MESSAGES = st.builds(
    AddSequences,
    sequences=st.lists(st.builds(NewSequence, INTEGERS, INTEGERS), min_size=1, max_size=3),
    prompt=st.builds(packed_tokens, st.lists(U32, max_size=6) | st.lists(st.integers(0, 499), max_size=300)),
    salt=st.binary(max_size=80),
    sampling=SAMPLING | PLAUSIBLE,
    use_prefix_cache=st.booleans(),
    priority=INTEGERS,
    router_id=st.text(max_size=80),
    dispatch=INTEGERS,
)


@pytest.fixture(autouse=True)
def log():
    with capture_logs() as entries:
        yield entries


@settings(max_examples=300)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=4))
def test_no_well_typed_sequence_ends_the_engine(messages):
    driver = EngineDriver(total_blocks=20, max_model_length_tokens=60)
    ends = {}
    for message in messages:
        driver.engine.add(decode_server_message(encode_message(message)[4:]))
    for _ in range(400):
        if not driver.engine.has_work:
            break
        report = decode_engine_message(encode_message(driver.engine.step())[4:])
        for update in report.updates:
            if update.finish_reason:
                assert update.sequence_id not in ends
                ends[update.sequence_id] = update.finish_reason

    assert not driver.engine.has_work
    assert not driver.runner.violations
    assert ends.keys() == {new.sequence_id for message in messages for new in message.sequences}
    assert driver.engine.report().load.pinned_blocks == 0
    driver.add(2**50, [1, 2, 3])
    driver.resident = set(driver.engine._pool.resident_hashes)
    driver._seq = driver.engine.report().seq
    while 2**50 not in driver.finish_reasons:
        driver.step()
    driver.assert_exact(2**50)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("temperature", math.nan, "temperature"),
        ("temperature", -0.1, "temperature"),
        ("top_p", 1.5, "top_p"),
        ("min_p", math.inf, "min_p"),
        ("top_k", -1, "top_k"),
        ("max_output_tokens", -1, "max_output_tokens"),
        ("min_output_tokens", -7, "min_output_tokens"),
        ("presence_penalty", -math.inf, "presence_penalty"),
        ("repetition_penalty", 0.0, "repetition_penalty"),
        ("logit_bias", {3: math.nan}, "logit_bias"),
        ("logit_bias", {-1: 1.0}, "bias token id"),
        ("stop_token_ids", frozenset({-1}), "stop token id"),
        ("logprobs", 21, "log probabilities"),
        ("prompt_logprobs", 1, "log probabilities"),
    ],
)
def test_a_sampling_parameter_out_of_its_range_is_refused_by_name(field, value, words):
    driver = EngineDriver()
    fields = {"max_output_tokens": 3, field: value}
    driver.engine.add(add_sequence(1, [1], sampling=SamplingParameters(**fields)))

    (update,) = driver.engine.step().updates

    assert update.finish_reason == "refused"
    assert words in update.error


def test_an_id_whose_refusal_is_not_reported_yet_is_not_given_to_another_sequence():
    driver = EngineDriver()
    for prompt_token_ids in ([], [1, 2], [3]):
        driver.engine.add(
            add_sequence(
                1,
                prompt_token_ids,
                sampling=SamplingParameters(max_output_tokens=1),
            )
        )

    assert [update.error for update in driver.engine.step().updates] == ["the prompt has no tokens"]
    assert not driver.engine.has_work
    driver.add(1, [1, 2])
    driver.run()
    driver.assert_exact(1)


@pytest.mark.parametrize("priority", [-101, 101])
def test_a_priority_out_of_its_range_is_refused(priority):
    driver = EngineDriver()
    driver.add(1, [1, 2], priority=priority)
    driver.run()

    assert "priority" in driver.errors[1]


def ending_of(data: bytes) -> list[BaseException]:
    """How an engine's loop ends that receives `data` and then end of file."""
    ours, theirs = socket.socketpair()
    endings: list[BaseException] = []

    def loop() -> None:
        try:
            serve(EngineDriver().engine, ServerChannel(theirs))
        except (ContractError, ServerGoneError) as error:
            endings.append(error)

    with ours, theirs:
        thread = threading.Thread(target=loop)
        thread.start()
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        thread.join(20)
        assert not thread.is_alive(), "the engine hangs"
    return endings


@settings(max_examples=60)
@given(body=st.binary(max_size=200), lies=st.integers(0, 2**32 - 1) | st.none())
def test_a_garbage_frame_is_a_protocol_error_and_never_a_hang(body, lies):
    length = len(body) if lies is None else lies
    (ending,) = ending_of(length.to_bytes(4, "little") + body)

    if lies is None:
        assert isinstance(ending, ContractError)


def test_a_frame_nested_without_end_is_a_protocol_error():
    body = b"\x83\xa4type\xa5abort\xabsequence_id\x01\xa1x" + b"\x91" * 100_000 + b"\x01"
    (ending,) = ending_of(len(body).to_bytes(4, "little") + body)

    assert isinstance(ending, ContractError)


def test_a_server_that_hangs_up_in_the_middle_of_a_frame_ends_the_engine():
    message = add_sequence(1, [1], sampling=SamplingParameters())

    (ending,) = ending_of(encode_message(message)[:-3])

    assert isinstance(ending, ServerGoneError)


def test_the_engine_checks_every_number_and_takes_all_that_the_api_takes():
    fields = {field.name: field.type for field in msgspec.structs.fields(SamplingParameters)}
    numbers = {name for name, kind in fields.items() if kind in (int, float)}

    assert numbers == set(_RANGES)
    for name, kind in (
        ("temperature", Temperature),
        ("top_p", Probability),
        ("min_p", Probability),
        ("presence_penalty", Penalty),
        ("frequency_penalty", Penalty),
        ("repetition_penalty", RepetitionPenalty),
    ):
        (meta,) = kind.__metadata__
        assert (meta.ge, meta.le) == _RANGES[name], name
