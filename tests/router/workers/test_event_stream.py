"""The stream's decisions with a hand-set clock."""

import msgspec
import pytest

from warmfleet_contracts.cache.kv_events import (
    MAX_COUNT,
    LoadReport,
    ResidentDigest,
    hello_proof,
)
from warmfleet_contracts.errors import ContractError
from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.errors import HelloRefusedError
from warmfleet_router.workers.event_stream import ResyncNeededError, StreamTiming, WorkerStream, verify_hello
from warmfleet_router.workers.prefix_index import PrefixIndex
from warmfleet_testing.cache.prefix_matches import matches
from warmfleet_testing.engine.modelled_worker import IDENTITY, ModelledWorker, hash_of

TIMING = StreamTiming()
NONCE = b"n" * 16
TOKEN = b"the worker's token"


def endpoint_of(worker, **changes):
    fields = {"uid": worker.uid, "name": worker.uid, "url": "http://127.0.0.1:1", "token": worker.token}
    return Endpoint(**{**fields, **changes})


def connected(worker, index, *, now=0.0, timing=TIMING):
    stream = WorkerStream(endpoint_of(worker), index, timing)
    reconnect(stream, worker, now)
    return stream


def reconnect(stream, worker, now):
    epoch, after = stream.opening(NONCE)
    for message in worker.answer(epoch, after, NONCE):
        stream.received(message, now)


def is_ready(stream, now):
    return not stream.unready_reason(now)


def is_load_only(stream, now):
    return stream._load_only_until is not None and now < stream._load_only_until


# Verification.


@pytest.mark.parametrize(
    "changes",
    [
        {"uid": "another-worker"},
        {"proof": b""},
        {"proof": hello_proof(b"another token", nonce=NONCE, uid="worker-0", identity=IDENTITY)},
        {"proof": hello_proof(TOKEN, nonce=b"an older nonce", uid="worker-0", identity=IDENTITY)},
        {"identity": b"short"},
        {"epoch": ""},
        {"block_size_tokens": 0},
        {"served_names": ["name"] * 65},
        {"served_names": [""]},
        {"served_names": ["m", "n" * 257]},
        {"block_size_tokens": MAX_COUNT + 1},
        {"window_tokens": MAX_COUNT + 1},
        {"max_model_length_tokens": MAX_COUNT + 1},
        {"epoch": "e" * 129},
        {"tokenizer_digest": "0" * 129},
        {"model_digest": "0" * 129},
    ],
    ids=lambda changes: f"{next(iter(changes))}-{str(next(iter(changes.values())))[:24]}",
)
def test_an_impostor_gets_no_prompt(changes):
    worker = ModelledWorker("worker-0", token=TOKEN)
    stream = connected(worker, PrefixIndex())
    stream.lost("reset", now=1.0)

    stream.opening(NONCE)
    with pytest.raises(HelloRefusedError):
        stream.received(worker.hello(NONCE, **changes), now=1.1)

    assert not is_ready(stream, 1.1)
    assert stream.hello is None
    assert stream.counts.hellos_refused == 1


def test_a_token_shows_that_the_worker_is_the_right_one():
    worker = ModelledWorker("worker-0", token=TOKEN)

    verify_hello(worker.hello(NONCE), endpoint_of(worker), NONCE)


def test_a_hello_may_have_the_largest_counts_and_the_longest_texts():
    worker = ModelledWorker("worker-0", token=TOKEN)
    largest = {
        **dict.fromkeys(("block_size_tokens", "window_tokens", "max_model_length_tokens"), MAX_COUNT),
        **dict.fromkeys(("epoch", "tokenizer_digest", "model_digest"), "0" * 128),
        "served_names": ["A model's folder: any name \N{LATIN SMALL LETTER U WITH DIAERESIS}", "n" * 256],
    }

    verify_hello(worker.hello(NONCE, **largest), endpoint_of(worker), NONCE)


def test_frames_before_the_hello_are_refused():
    worker = ModelledWorker("worker-0")
    stream = WorkerStream(endpoint_of(worker), PrefixIndex(), TIMING)
    stream.opening(NONCE)

    with pytest.raises(HelloRefusedError):
        stream.received(worker.load_frame(), now=0.0)


# Readiness.


def test_a_worker_is_ready_once_its_engine_reports_blocks():
    worker = ModelledWorker("worker-0")
    stream = WorkerStream(endpoint_of(worker), PrefixIndex(), TIMING)
    stream.opening(NONCE)
    reasons = [stream.unready_reason(0.0)]

    for message in worker.answer("", 0, NONCE):
        stream.received(message, 0.0)
        reasons.append(stream.unready_reason(0.0))

    assert reasons == [
        "not connected yet",
        "the engine is not ready yet",
        "the engine is not ready yet",
        "",
    ]


def test_a_draining_worker_is_not_ready():
    worker = ModelledWorker("worker-0")
    stream = connected(worker, PrefixIndex())

    worker.load = LoadReport(total_blocks=10, draining=True)
    stream.received(worker.load_frame(), 1.0)

    assert stream.unready_reason(1.0) == "draining"


def test_a_broken_stream_keeps_the_worker_ready_until_an_attempt_to_reopen_it_fails():
    worker = ModelledWorker("worker-0")
    index = PrefixIndex()
    stream = connected(worker, index)

    stream.lost("reset", now=10.0)
    within_grace = (is_ready(stream, 10.1), index.is_precise(worker.uid))
    stream.opening(NONCE)
    stream.lost("connection refused", now=10.2)

    assert within_grace == (True, True)
    assert not is_ready(stream, 10.2)
    assert not index.is_precise(worker.uid)
    assert stream.unready_reason(10.2) == "connection refused"


def test_the_grace_of_a_broken_stream_ends():
    stream = connected(ModelledWorker("worker-0"), PrefixIndex())

    stream.lost("reset", now=10.0)

    assert not is_ready(stream, 10.0 + TIMING.reopen_grace_seconds)


def test_load_of_an_earlier_engine_does_not_make_a_new_one_ready():
    worker = ModelledWorker("worker-0")
    stream = connected(worker, PrefixIndex())
    worker.restart()
    stream.lost("reset", now=1.0)

    stream.opening(NONCE)
    stream.received(worker.hello(NONCE), now=1.1)

    assert not is_ready(stream, 1.1)
    assert stream.load.total_blocks == 0


# Silence and resyncs.


@pytest.mark.parametrize(("running", "limit"), [(0, 12.0), (1, 3.0)])
def test_a_silent_worker_is_not_current_until_its_next_frame(running, limit):
    worker = ModelledWorker("worker-0")
    worker.load = LoadReport(total_blocks=10, running_sequences=running)
    index = PrefixIndex()
    stream = connected(worker, index, now=0.0)

    at_the_limit, beyond = stream.is_current(limit), stream.is_current(limit + 0.1)
    stream.received(worker.load_frame(), limit + 0.2)

    assert (at_the_limit, beyond, stream.is_current(limit + 0.2)) == (True, False, True)
    assert index.is_precise(worker.uid)


def test_a_reopened_stream_resumes_without_a_snapshot():
    worker = ModelledWorker("worker-0", replay_frames=4)
    index = PrefixIndex()
    stream = connected(worker, index)
    stream.lost("reset", now=1.0)
    for number in range(4):
        worker.change(stored=[hash_of(number)])

    reconnect(stream, worker, 1.1)

    assert index.position(worker.uid) == (worker.epoch, 4)
    assert stream.counts.snapshots == 1
    assert stream.counts.resyncs == 0


def test_a_worker_that_cannot_replay_any_more_sends_a_snapshot_which_counts_as_a_resync():
    worker = ModelledWorker("worker-0", replay_frames=4)
    index = PrefixIndex()
    stream = connected(worker, index)
    stream.lost("reset", now=1.0)
    for number in range(5):
        worker.change(stored=[hash_of(number)])

    reconnect(stream, worker, 1.1)

    assert matches(index, [hash_of(0), hash_of(4)], [worker.uid]) == {worker.uid: 2}
    assert (stream.counts.snapshots, stream.counts.resyncs) == (2, 1)


def lie(stream, worker, now):
    """The worker's digest contradicts the set."""
    stream.received(msgspec.structs.replace(worker.load_frame(), digest=ResidentDigest(count=77)), now)


def test_three_resyncs_in_a_minute_mean_load_only_until_the_quiet_period_is_over():
    worker = ModelledWorker("worker-0")
    index = PrefixIndex()
    stream = connected(worker, index)

    for now in (10.0, 20.0):
        with pytest.raises(ResyncNeededError):
            lie(stream, worker, now)
        stream.lost("resync", now)
        reconnect(stream, worker, now)
    lie(stream, worker, 30.0)

    # Its load still counts and it still gets prompts; its events do not count.
    worker.load = LoadReport(total_blocks=10, running_sequences=3)
    stream.received(worker.load_frame(), 31.0)
    assert is_ready(stream, 31.0)
    assert is_load_only(stream, 31.0)
    assert stream.load.running_sequences == 3
    assert not index.is_precise(worker.uid)
    assert index.blocks == 0
    assert (stream.counts.resyncs, stream.counts.load_only) == (3, 1)

    with pytest.raises(ResyncNeededError):
        stream.received(worker.load_frame(), 91.0)
    stream.lost("resync", 91.0)
    reconnect(stream, worker, 91.1)
    assert index.is_precise(worker.uid)
    assert not is_load_only(stream, 91.1)


def test_resyncs_that_are_far_apart_are_forgiven():
    worker = ModelledWorker("worker-0")
    index = PrefixIndex()
    stream = connected(worker, index)

    for now in (10.0, 50.0, 90.0, 130.0):
        with pytest.raises(ResyncNeededError):
            lie(stream, worker, now)
        stream.lost("resync", now)
        reconnect(stream, worker, now)

    assert index.is_precise(worker.uid)
    assert stream.counts.load_only == 0


def test_a_worker_whose_blocks_do_not_fit_is_routed_by_load_only():
    worker = ModelledWorker("worker-0")
    worker.change(stored=[hash_of(number) for number in range(9)])
    index = PrefixIndex(max_blocks=8)

    stream = connected(worker, index)

    assert is_ready(stream, 0.0)
    assert is_load_only(stream, 0.0)
    assert index.blocks == 0


def test_a_frame_of_another_epoch_closes_the_stream():
    worker = ModelledWorker("worker-0")
    stream = connected(worker, PrefixIndex())
    worker.restart()

    with pytest.raises(ContractError):
        stream.received(worker.load_frame(), 1.0)


def test_a_worker_that_stays_away_is_dropped_from_the_index():
    worker = ModelledWorker("worker-0")
    worker.change(stored=[hash_of(1)])
    index = PrefixIndex()
    stream = connected(worker, index)

    stream.lost("reset", now=10.0)
    for now in (10.1, 40.0, 71.0):
        stream.opening(NONCE)
        stream.lost("connection refused", now)

    assert index.blocks == 0
