"""The engine is a process of its own: server and engine live and die together."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from warmfleet_contracts.errors import ContractError
from warmfleet_testing.engine.add_messages import add_sequence
from warmfleet_testing.engine.worker_process import TINY_NAME, running_worker
from warmfleet_testing.processes.process_tree import is_running
from warmfleet_worker.engine.messages import (
    MAX_MESSAGE_BYTES,
    EngineReady,
    StepReport,
    decode_engine_message,
    decode_server_message,
    encode_message,
    message_reader,
)
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.settings import parse_settings

LONG = {
    "model": TINY_NAME,
    "prompt": "hello",
    "max_tokens": 900,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
}


def wait_until_gone(pid: int, timeout_seconds: float = 10) -> None:
    deadline = time.monotonic() + timeout_seconds
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.02)


def test_messages_survive_any_split_of_the_stream():
    messages = [add_sequence(n, [n, n + 1], sampling=SamplingParameters(seed=2**64 - 1)) for n in range(3)]
    stream = b"".join(map(encode_message, messages))

    for piece_bytes in (1, 2, 3, 7, len(stream)):
        frames = message_reader()
        pieces = [stream[start : start + piece_bytes] for start in range(0, len(stream), piece_bytes)]
        bodies = [body for piece in pieces for body in frames.feed(piece)]
        assert [decode_server_message(body) for body in bodies] == messages


@pytest.mark.parametrize("body", [b"", b"\x00", b"\xc1", b"\x81\xa4type\xa3add"])
def test_a_malformed_message_is_refused_by_both_sides(body):
    for decode in (decode_server_message, decode_engine_message):
        with pytest.raises(ContractError):
            decode(body)


def test_a_message_beyond_the_bound_is_refused_at_its_length():
    with pytest.raises(ContractError):
        list(message_reader().feed((MAX_MESSAGE_BYTES + 1).to_bytes(4, "little")))


def test_an_idle_engine_ends_when_its_server_closes_the_socket(tiny_served_path):
    ours, theirs = socket.socketpair()
    settings = {"model_path": str(tiny_served_path), "dtype": "Float32", "kv_cache_bytes": 1_000_000}
    command = [sys.executable, "-m", "warmfleet_worker.engine_process"]
    command += ["--fd", str(theirs.fileno()), "--settings", json.dumps(settings)]
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        ours.settimeout(60)
        frames = message_reader()
        messages = []
        while not messages:
            messages += [decode_engine_message(body) for body in frames.feed(ours.recv(65_536))]
        assert isinstance(messages[0], EngineReady)
        assert messages[0].total_blocks > 0

        # A sequence of the engine's own life: admitted, computed, finished.
        sampling = SamplingParameters(temperature=0, max_output_tokens=3)
        ours.sendall(encode_message(add_sequence(1, [5] * 20, sampling=sampling)))
        updates = []
        while not any(update.finish_reason for update in updates):
            for body in frames.feed(ours.recv(65_536)):
                message = decode_engine_message(body)
                assert isinstance(message, StepReport)
                updates += message.updates
        assert updates[0].cached_tokens == 0
        assert sum(len(update.token_ids) for update in updates) == 3

        ours.close()
        assert process.wait(60) == 0


def test_a_killed_engine_takes_its_server_with_it(tiny_served_path):
    with running_worker(tiny_served_path, "--kv-cache-bytes", "4000000") as worker:
        events: list[str] = []

        def read() -> None:
            with (
                contextlib.suppress(httpx.HTTPError),
                worker.client() as client,
                client.stream("POST", "/v1/completions", json=LONG) as response,
            ):
                events.extend(line for line in response.iter_lines() if line)

        reader = threading.Thread(target=read)
        reader.start()
        while not events:
            time.sleep(0.01)
        os.kill(worker.engine_pid, signal.SIGKILL)
        reader.join(10)

        assert worker.process.wait(15) == 1
        line = worker.wait_for_log("the engine ended, so does this worker")
        assert "signal 9" in line["reason"]
        # Mid-stream the client gets an error object, never silence.
        assert "error" in json.loads(events[-1].removeprefix("data: "))


def test_a_killed_server_takes_its_engine_with_it(tiny_served_path):
    with running_worker(tiny_served_path, "--kv-cache-bytes", "1000000") as worker:
        engine_pid = worker.engine_pid

        worker.process.kill()

        wait_until_gone(engine_pid)


def test_a_damaged_model_is_refused_by_the_name_of_its_file(tiny_served_path, tmp_path):
    for file in tiny_served_path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])

    left = tmp_path / "termination-log"
    left.touch()
    flags = ("--kv-cache-bytes", "1000000", "--termination-message", str(left))

    with running_worker(tmp_path, *flags, wait=False) as worker:
        assert worker.process.wait(60) == 1
        assert "model.safetensors" in worker.wait_for_log("the engine ended, so does this worker")["reason"]
    assert left.read_text().startswith("the engine ended: ")
    assert "model.safetensors" in left.read_text()


def test_a_folder_without_a_tokenizer_is_refused_before_the_engine_starts(tmp_path):
    left = tmp_path / "termination-log"
    left.touch()

    with running_worker(tmp_path, "--termination-message", str(left), wait=False) as worker:
        assert worker.process.wait(60) == 2
        assert "tokenizer" in worker.wait_for_log("cannot serve this model")["reason"]
    assert left.read_text().startswith("cannot serve this model: tokenizer")


def test_a_busy_port_is_an_error_that_names_port_and_flag(tiny_served_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "warmfleet_worker", "--model", str(tiny_served_path)]
        ended = subprocess.run(
            [*command, "--port", str(port)], capture_output=True, text=True, timeout=60, check=False
        )

    line = json.loads(ended.stderr.splitlines()[-1])
    assert (ended.returncode, ended.stdout) == (2, "")
    assert (line["port"], line["flag"]) == (port, "--port")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--kv-cache-bytes", "0"),
        ("--max-running-sequences", "0"),
        ("--block-size-tokens", "17"),
        ("--port", "x"),
    ],
)
def test_a_wrong_flag_is_refused_with_flag_and_value(capsys, flag, value):
    with pytest.raises(SystemExit) as caught:
        parse_settings(["--model", "/anywhere", flag, value], {})

    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert flag in error
    assert value in error


def test_the_server_process_holds_no_torch(shared_worker):
    maps = Path(f"/proc/{shared_worker.process.pid}/maps").read_text()

    assert "libtorch" not in maps
