"""Commands that ask a router: `chat` and `why`, by what they print and their exit codes."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner, Result

from warmfleet_cli.__main__ import app
from warmfleet_cli.errors import ExitCode
from warmfleet_testing.processes.ports import free_port_range


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


class _StubRouter(BaseHTTPRequestHandler):
    requests: ClassVar[list[dict[str, Any]]] = []
    break_off: ClassVar[bool] = False
    first_piece: ClassVar[str] = "Par"
    headers_beside: ClassVar[dict[str, str]] = {}
    """In the head of a stream."""
    line_bytes: ClassVar[int] = 0
    """Instead of events, one line of that length."""
    decision: ClassVar[dict[str, object]] = {}

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(200, {"data": [{"id": "stub"}]})
        elif self.path == "/debug/decisions/req-1":
            self._answer(200, self.decision)
        else:
            self._answer(404, {"error": {"message": "no decision with this id is kept"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.requests.append(body)
        if body["model"] != "stub":
            self._answer(404, {"error": {"message": f"{body['model']!r} is not served"}})
            return
        self.send_response(200)
        self.send_header("x-warmfleet-decision", "d-1")
        for name, value in self.headers_beside.items():
            self.send_header(name, value)
        self.end_headers()
        if self.line_bytes:
            with contextlib.suppress(ConnectionError):
                self.wfile.write(b"data: " + b"x" * self.line_bytes)
            return
        events: list[object] = [
            {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"delta": {"content": self.first_piece}}]},
        ]
        if self.break_off:
            events.append({"error": {"message": "the worker is gone"}})
        else:
            details = {"cached_tokens": 48}
            usage = {"prompt_tokens": 61, "completion_tokens": 2, "prompt_tokens_details": details}
            events += [
                {"choices": [{"delta": {"content": "is"}, "finish_reason": "stop"}]},
                {"choices": [], "usage": usage},
            ]
        self.wfile.write(
            b": ping\n\n" + b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
        )
        self.wfile.write(b"data: [DONE]\n\n")

    def _answer(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def _candidate(endpoint: str, cached: int, total: float, *, precise: bool = True) -> dict[str, object]:
    numbers = dict.fromkeys(("wait_ms", "base_ms", "externality_ms", "later_ms"), 0.5)
    counts = dict.fromkeys(("running_sequences", "waiting_sequences", "pending_tokens"), 0)
    return {
        "endpoint": endpoint,
        "score": total,
        "precise": precise,
        "cached_tokens": cached,
        "uncached_tokens": 61 - cached,
        "prefill_ms": total - 1.5,
        "total_ms": total,
        **numbers,
        **counts,
    }


DECISION = {
    "id": "d-1",
    "request_id": "req-1",
    "path": "/v1/chat/completions",
    "model": "stub",
    "policy": "LowestCost",
    "mode": "precise",
    "decision_ms": 0.7,
    "outcome": "completed",
    "total_ms": 400.0,
    "endpoint": "stub-1",
    "reason": "lowest cost",
    "runner_up": "stub-0",
    "candidates": [_candidate("stub-1", 48, 12.5), _candidate("stub-0", 0, 99.0, precise=False)],
    "candidate_count": 3,
    "predicted_prompt_tokens": 61,
    "predicted_cached_tokens": 48,
    "actual_prompt_tokens": 61,
    "actual_cached_tokens": 32,
    "difference": "evicted",
    "missed_tokens": {"compulsory": 13, "capacity": 16},
    "first_byte_after_ms": 21.0,
    "status": 200,
    "error": None,
    "retried": [],
    "from_a_later_version": 1,
}


@pytest.fixture
def router() -> Iterator[str]:
    _StubRouter.requests = []
    _StubRouter.break_off = False
    _StubRouter.first_piece = "Par"
    _StubRouter.headers_beside = {}
    _StubRouter.line_bytes = 0
    _StubRouter.decision = DECISION
    server = ThreadingHTTPServer(("127.0.0.1", 0), _StubRouter)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_one_question_prints_the_answer_alone_and_its_cost_beside_it(router: str) -> None:
    result = run("chat", "--url", f"{router}/v1", "--once", "What is the capital of France?")

    assert (result.exit_code, result.stdout) == (0, "Paris\n")
    assert "48 of 61 prompt tokens cached, first token after" in result.stderr
    assert "warmfleet why d-1" in result.stderr


def test_an_answer_as_json_has_the_same_numbers(router: str) -> None:
    answer = json.loads(run("chat", "--url", router, "--once", "hi", "--output", "json").stdout)

    assert answer["text"] == "Paris"
    assert (answer["cached_tokens"], answer["prompt_tokens"], answer["completion_tokens"]) == (48, 61, 2)
    assert answer["decision"] == "d-1"


def test_a_conversation_remembers_its_turns(router: str) -> None:
    result = CliRunner().invoke(app, ["chat", "--url", router, "--system", "Be brief."], input="one\ntwo\n\n")

    assert result.exit_code == 0
    assert result.stdout.count("Paris") == 2
    assert [message["content"] for message in _StubRouter.requests[-1]["messages"]] == [
        "Be brief.",
        "one",
        "Paris",
        "two",
    ]


def test_an_answer_that_breaks_off_is_an_error_and_not_an_end(router: str) -> None:
    _StubRouter.break_off = True

    result = run("chat", "--url", router, "--once", "hi")

    assert result.exit_code == ExitCode.REFUSED
    assert result.stderr == "error: the worker is gone\n"


def test_an_answer_keeps_its_lines_and_drives_no_terminal(router: str) -> None:
    _StubRouter.first_piece = "\x1b]0;title\x07\n\tPar\x9b"

    once = run("chat", "--url", router, "--once", "hi")
    talk = CliRunner().invoke(app, ["chat", "--url", router], input="one\n\n")
    as_json = run("chat", "--url", router, "--once", "hi", "--output", "json").stdout

    assert once.stdout == "\\u001b]0;title\\u0007\n\tPar\\u009bis\n"
    assert once.stdout in talk.stdout
    assert json.loads(as_json)["text"] == _StubRouter.first_piece + "is"
    assert "\x9b" not in as_json


def test_a_line_of_a_stream_has_a_bound(router: str) -> None:
    _StubRouter.line_bytes = 2 * 1024 * 1024

    result = run("chat", "--url", router, "--once", "hi")

    assert result.exit_code == ExitCode.REFUSED
    url = f"{router}/v1/chat/completions"
    assert result.stderr == f"error: {url} sends a line of more than 1,048,576 bytes\n"


def test_a_compressed_stream_is_refused(router: str) -> None:
    _StubRouter.headers_beside = {"content-encoding": "gzip"}

    result = run("chat", "--url", router, "--once", "hi")

    assert result.exit_code == ExitCode.REFUSED
    assert "/v1/chat/completions answers in 'gzip', which was not asked for" in result.stderr


def test_a_refused_request_quotes_the_router(router: str) -> None:
    result = run("chat", "--url", router, "--model", "nope", "--once", "hi")

    assert (result.exit_code, result.stderr) == (ExitCode.REFUSED, "error: 'nope' is not served\n")


def test_a_missing_router_is_reported_in_one_line_with_a_remedy() -> None:
    port = free_port_range(1)
    result = run("why", "x", "--url", f"http://127.0.0.1:{port}")

    assert result.exit_code == ExitCode.NOT_RUNNING
    assert result.stderr.startswith(f"error: http://127.0.0.1:{port} does not answer: connection refused")
    assert "warmfleet up" in result.stderr


def test_why_shows_candidates_predicted_and_actual_tokens(router: str) -> None:
    result = run("why", "req-1", "--url", router)

    lines = result.stdout.splitlines()
    assert "tenant anonymous" in lines[0]
    assert "LowestCost chose stub-1 (lowest cost) among 3" in lines[1]
    assert lines[4].split()[:3] == ["*", "stub-1", "48"]
    assert lines[5].split()[:3] == ["+~", "stub-0", "0"]
    assert "and 1 more" in lines[6]
    assert "predicted  48 of 61 tokens cached" in lines
    assert "actual     32 of 61 tokens cached: evicted; missed: 13 compulsory, 16 capacity" in lines
    assert json.loads(run("why", "req-1", "--url", router, "-o", "json").stdout) == DECISION


def test_why_shows_a_routers_texts_as_one_printable_line_each(router: str) -> None:
    _StubRouter.decision = {
        **DECISION,
        "model": "m\x1b[2J\noutcome    forged",
        "reason": "\x9b\n",
        "outcome": "completed\x1bc",
        "not_considered": {"u\x07": "left\nout"},
    }

    lines = run("why", "req-1", "--url", router).stdout.splitlines()

    assert "model m\\u001b[2J\\u000aoutcome    forged  tenant" in lines[0]
    assert "chose stub-1 (\\u009b\\u000a) among 3" in lines[1]
    assert "   not considered: u\\u0007, left\\u000aout" in lines
    assert lines[-1].startswith("outcome    completed\\u001bc, ")


def test_why_of_an_unknown_request_reports_that_it_is_unknown(router: str) -> None:
    result = run("why", "a/../b", "--url", router)

    assert result.exit_code == ExitCode.REFUSED
    assert "no decision with this id" in result.stderr
