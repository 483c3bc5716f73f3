"""The event stream's bytes. `kv_events_v1.json` holds what version 1 looks like on the wire, for good.

A file of a later version has the messages that differ in it.
"""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_contracts.cache.contract_versions import (
    ACCEPTED_VERSIONS,
    CONTRACT_VERSION,
    common_version,
    stated_versions,
)
from warmfleet_contracts.cache.kv_events import (
    MAX_FRAME_BYTES,
    MAX_REPORTED_ANSWERS,
    MAX_REPORTED_ROUTERS,
    MAX_ROUTER_ID_CHARS,
    Frame,
    Hello,
    LoadReport,
    MessageReader,
    PlainAnswer,
    StepTimeFit,
    decode_message,
    encode_message,
    hello_proof,
)
from warmfleet_contracts.cache.start_phases import StartPhases
from warmfleet_contracts.errors import ContractError
from warmfleet_testing.engine.digests import digest_of

HERE = Path(__file__).parent
ONE, TWO = bytes(range(16)), bytes(range(16, 32))
DIGEST = digest_of([ONE, TWO])

VERSION_1 = {
    "hello": Hello(
        uid="worker-0",
        identity=b"cache-identity-1",
        block_size_tokens=16,
        window_tokens=0,
        epoch="epoch-1",
        served_names=["model-a", "org/model-b"],
        tokenizer_digest="ab" * 32,
        max_model_length_tokens=4096,
        proof=hello_proof(b"token", nonce=b"0123456789abcdef", uid="worker-0", identity=b"cache-identity-1"),
    ),
    "hello with a model digest": Hello(
        uid="worker-0",
        identity=b"cache-identity-1",
        block_size_tokens=16,
        window_tokens=0,
        epoch="epoch-1",
        served_names=["model-a"],
        tokenizer_digest="ab" * 32,
        max_model_length_tokens=4096,
        proof=b"",
        model_digest="cd" * 32,
    ),
    "live frame": Frame(
        epoch="epoch-1", seq=7, stored=[ONE, TWO], removed=[b"r" * 16], cleared=False, digest=DIGEST
    ),
    "clearing frame": Frame(epoch="epoch-1", seq=8, cleared=True, stored=[ONE, TWO], digest=DIGEST),
    "snapshot chunk": Frame(epoch="epoch-1", seq=8, stored=[ONE], snapshot_left=1, digest=DIGEST),
    "last snapshot chunk": Frame(epoch="epoch-1", seq=8, stored=[TWO], snapshot_left=0, digest=DIGEST),
    "load frame": Frame(
        epoch="epoch-1",
        seq=8,
        digest=DIGEST,
        load=LoadReport(
            running_sequences=3,
            waiting_sequences=1,
            max_running_sequences=64,
            queued_uncached_tokens=500,
            context_tokens=1200,
            total_blocks=1000,
            pinned_blocks=80,
            cached_blocks=2,
            step_time=StepTimeFit(
                base_seconds=0.004,
                per_prefill_token_seconds=0.0005,
                per_decode_sequence_seconds=0.001,
                per_context_token_seconds=0.0000005,
                samples=400,
            ),
            admitted_dispatches={"router-a": 17},
            draining=True,
        ),
    ),
    "empty frame": Frame(epoch="epoch-1", seq=0),
}

LOAD = VERSION_1["load frame"].load
PLAIN_ANSWERS = {"router-a": [PlainAnswer(15, 0.125, 0.5, 40)], "router-b": [PlainAnswer(3, 0.0, 2.0, 1)]}
KNEE = msgspec.structs.replace(LOAD.step_time, knee_tokens=40)
LOAD_2 = msgspec.structs.replace(LOAD, plain_answers=PLAIN_ANSWERS, step_time=KNEE)
START = StartPhases(process=0.4, imports=2.5, load=0.75, prewarm=0.03125, first_token=0.125)
VERSION_2 = {
    "hello": msgspec.structs.replace(VERSION_1["hello"], v=2),
    "hello of an exact engine": msgspec.structs.replace(
        VERSION_1["hello with a model digest"], v=2, exact=True
    ),
    "live frame": msgspec.structs.replace(VERSION_1["live frame"], v=2),
    "load frame": msgspec.structs.replace(VERSION_1["load frame"], v=2, load=LOAD_2),
    "load frame of a worker with a set size of steps": msgspec.structs.replace(
        VERSION_1["load frame"], v=2, load=msgspec.structs.replace(LOAD_2, fixed_batched_tokens=2048)
    ),
    "load frame with open dispatches": msgspec.structs.replace(
        VERSION_1["load frame"],
        v=2,
        load=msgspec.structs.replace(LOAD_2, open_dispatches={"router-a": 3, "router-b": 1}),
    ),
    "empty frame": msgspec.structs.replace(VERSION_1["empty frame"], v=2, start=START),
}
MESSAGES = {1: VERSION_1, 2: VERSION_2}
RECORDED = [(version, name) for version, messages in MESSAGES.items() for name in messages]


def golden(version):
    recorded = json.loads((HERE / f"kv_events_v{version}.json").read_text())
    return {name: bytes.fromhex(encoded) for name, encoded in recorded["messages"].items()}


def test_every_spoken_version_has_a_golden_file():
    assert {int(path.stem.removeprefix("kv_events_v")) for path in HERE.glob("kv_events_v*.json")} >= (
        ACCEPTED_VERSIONS
    )


@pytest.mark.parametrize(("version", "name"), RECORDED)
def test_a_version_is_written_and_read_as_recorded(version, name):
    recorded = golden(version)[name]

    assert encode_message(MESSAGES[version][name], version) == recorded
    assert list(MessageReader().feed(recorded)) == [MESSAGES[version][name]]


@pytest.mark.parametrize("version", MESSAGES)
def test_a_golden_file_names_every_message_and_no_other(version):
    assert golden(version).keys() == MESSAGES[version].keys()


def test_every_phase_of_a_start_is_recorded():
    assert None not in msgspec.structs.astuple(START)


WITHOUT_VERSION_2 = {
    "hello of an exact engine": "hello with a model digest",
    "load frame of a worker with a set size of steps": "load frame",
    "load frame with open dispatches": "load frame",
}


@pytest.mark.parametrize("name", VERSION_2)
def test_what_version_2_added_is_not_written_in_version_1(name):
    assert encode_message(VERSION_2[name], 1) == golden(1)[WITHOUT_VERSION_2.get(name, name)]


@pytest.mark.parametrize("name", VERSION_2)
def test_a_message_of_version_2_is_refused_where_only_version_1_was_stated(name):
    with pytest.raises(ContractError, match="contract version 2, this process accepts"):
        list(MessageReader({1}).feed(golden(2)[name]))


def test_a_process_speaks_the_version_of_its_release_and_the_one_before():
    assert {CONTRACT_VERSION, CONTRACT_VERSION - 1} == ACCEPTED_VERSIONS


@pytest.mark.parametrize(
    ("stated", "spoken", "common"),
    [
        (None, {1, 2}, 1),
        ("1", {1, 2}, 1),
        ("1,2", {1}, 1),
        ("1,2", {1, 2}, 2),
        ("2,3", {1, 2}, 2),
        ("3,2,1", {2, 3}, 3),
    ],
)
def test_the_highest_common_version_is_spoken(stated, spoken, common):
    assert common_version(stated, spoken) == common


@pytest.mark.parametrize(
    ("stated", "spoken"),
    [(None, {2, 3}), ("3,4", {1, 2}), ("", {1}), ("1,", {1}), ("one", {1}), ("1" * 99, {1})],
)
def test_without_a_common_version_nothing_is_spoken(stated, spoken):
    with pytest.raises(ContractError):
        common_version(stated, spoken)


def test_stated_versions_are_read_back():
    assert stated_versions({2, 1}) == "1,2"
    assert common_version(stated_versions(ACCEPTED_VERSIONS)) == CONTRACT_VERSION


@pytest.mark.parametrize("name", VERSION_1)
def test_unknown_fields_are_tolerated(name):
    fields = msgspec.msgpack.decode(encode_message(VERSION_1[name], 1)[4:])
    fields["added_later"] = {"some": ["thing"]}
    if fields.get("load"):
        fields["load"]["added_later"] = 1

    assert decode_message(msgspec.msgpack.encode(fields)) == VERSION_1[name]


@pytest.mark.parametrize(
    "changes",
    [{"v": 3}, {"v": 0}, {"type": "goodbye"}, {"seq": "seven"}, {"stored": "abc"}, {"epoch": None}],
    ids=str,
)
def test_a_frame_with_an_unknown_version_or_a_wrong_field_is_refused(changes):
    fields = msgspec.msgpack.decode(encode_message(VERSION_1["live frame"])[4:])

    with pytest.raises(ContractError):
        decode_message(msgspec.msgpack.encode({**fields, **changes}))


MOST_REPORTED = {
    "admitted_dispatches": {f"{number:0{MAX_ROUTER_ID_CHARS}}": 1 for number in range(MAX_REPORTED_ROUTERS)},
    "open_dispatches": {f"{number:0{MAX_ROUTER_ID_CHARS}}": 1 for number in range(MAX_REPORTED_ROUTERS)},
    "plain_answers": {"r" * MAX_ROUTER_ID_CHARS: [PlainAnswer(1, 0.0, 0.0, 1)] * MAX_REPORTED_ANSWERS},
}


@pytest.mark.parametrize("name", MOST_REPORTED)
def test_a_report_may_name_as_many_routers_and_answers_as_a_fleet_can_have(name):
    frame = Frame(epoch="e", seq=0, load=LoadReport(**{name: MOST_REPORTED[name]}))

    assert decode_message(encode_message(frame)[4:]).load == frame.load


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("admitted_dispatches", {str(number): 1 for number in range(MAX_REPORTED_ROUTERS + 1)}),
        ("admitted_dispatches", {"r" * (MAX_ROUTER_ID_CHARS + 1): 1}),
        ("open_dispatches", {str(number): 1 for number in range(MAX_REPORTED_ROUTERS + 1)}),
        ("open_dispatches", {"r" * (MAX_ROUTER_ID_CHARS + 1): 1}),
        ("plain_answers", {str(number): [] for number in range(MAX_REPORTED_ROUTERS + 1)}),
        ("plain_answers", {"r" * (MAX_ROUTER_ID_CHARS + 1): []}),
        ("plain_answers", {"r": [PlainAnswer(1, 0.0, 0.0, 1)] * (MAX_REPORTED_ANSWERS + 1)}),
    ],
    ids=[
        "routers",
        "id",
        "routers with open",
        "id with open",
        "routers with answers",
        "id with answers",
        "answers",
    ],
)
def test_a_report_of_more_routers_or_answers_than_a_fleet_can_have_is_malformed(name, value):
    frame = Frame(epoch="e", seq=0, load=LoadReport(**{name: value}))

    with pytest.raises(ContractError, match=f"malformed event frame: .* length <= .*{name}"):
        decode_message(encode_message(frame)[4:])


@settings(max_examples=60)
@given(cuts=st.lists(st.integers(1, 60), min_size=1))
def test_messages_survive_any_cutting_of_the_stream(cuts):
    messages = list(VERSION_2.values())
    data = b"".join(map(encode_message, messages))
    reader = MessageReader()

    read = []
    position = turn = 0
    while position < len(data):
        size = cuts[turn % len(cuts)]
        read += reader.feed(data[position : position + size])
        position += size
        turn += 1

    assert read == messages


def test_a_frame_beyond_the_limit_is_refused_before_it_is_buffered():
    with pytest.raises(ContractError, match="exceeds the limit"):
        list(MessageReader().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "little")))
    with pytest.raises(ContractError, match="exceeds the limit"):
        encode_message(Frame(epoch="e", seq=1, stored=[ONE] * (MAX_FRAME_BYTES // 16)))


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_garbage_is_a_contract_error_and_nothing_else(data):
    try:
        list(MessageReader().feed(len(data).to_bytes(4, "little") + data))
    except ContractError:
        return
    raise AssertionError("garbage was understood")


def test_a_proof_depends_on_every_part():
    parts = {"nonce": b"n", "uid": "u", "identity": b"i"}
    proofs = {
        hello_proof(b"token", **parts),
        hello_proof(b"other", **parts),
        hello_proof(b"token", **{**parts, "nonce": b"m"}),
        hello_proof(b"token", **{**parts, "uid": "v"}),
        hello_proof(b"token", **{**parts, "identity": b"j"}),
        hello_proof(b"token", nonce=b"nu", uid="", identity=b"i"),
    }

    assert len(proofs) == 6
