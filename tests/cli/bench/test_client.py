import asyncio
import contextlib
import gzip
import socket

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from warmfleet_cli.bench.client import Question, ask, benchmark_client

QUESTION = Question(request_id="bench-1", model="m", token_ids=[1, 2, 3], output_tokens=2)
TOKEN = 'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'
USAGE = (
    'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": %d,'
    ' "prompt_tokens_details": {"cached_tokens": 1}}}\n\n'
)
DONE = "data: [DONE]\n\n"


@contextlib.asynccontextmanager
async def server(answer):
    """A completions endpoint on loopback that answers with what `answer(request)` returns."""
    app = Starlette(routes=[Route("/v1/completions", answer, methods=["POST"])])
    config = uvicorn.Config(app, log_level="error", lifespan="off")
    running = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        task = asyncio.create_task(running.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        running.should_exit = True
        await task


def stream(*parts, pause_seconds=0.0):
    async def body():
        for part in parts:
            await asyncio.sleep(pause_seconds)
            yield part

    async def answer(request: Request) -> Response:
        return StreamingResponse(body(), media_type="text/event-stream")

    return answer


async def ask_once(answer, **options):
    async with server(answer) as url, benchmark_client() as client:
        return await ask(client, url, QUESTION, **options)


async def test_the_time_to_first_token_ends_with_the_first_token_and_not_with_a_ping():
    answer = await ask_once(stream(": ping\n\n", TOKEN, TOKEN, USAGE % 2, DONE, pause_seconds=0.05))

    assert answer.succeeded, answer.error
    assert 0.1 <= answer.first_token_seconds < answer.total_seconds - 0.1
    assert (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens) == (3, 1, 2)


async def test_a_question_sent_late_counts_from_when_it_was_due():
    due = asyncio.get_running_loop().time() - 5

    answer = await ask_once(stream(TOKEN, USAGE % 2, DONE), due=due)

    assert answer.first_token_seconds >= 5


async def test_the_server_gets_exactly_these_tokens_and_the_request_id():
    seen = {}

    async def answer(request: Request) -> Response:
        seen.update(await request.json(), id=request.headers["x-request-id"])
        return JSONResponse({})

    await ask_once(answer)

    assert seen["id"] == "bench-1"
    assert seen["prompt"] == [1, 2, 3]
    assert seen["max_tokens"] == 2
    assert seen["ignore_eos"]
    assert seen["stream_options"] == {"include_usage": True}


async def test_a_refusal_is_a_failure_with_its_text():
    async def answer(request: Request) -> Response:
        return JSONResponse({"error": {"message": "no replica"}}, status_code=503)

    assert "status 503" in (await ask_once(answer)).error
    assert "no replica" in (await ask_once(answer)).error


async def test_an_error_in_the_stream_is_a_failure():
    answer = await ask_once(stream(TOKEN, 'data: {"error": {"message": "worker lost"}}\n\n'))

    assert "worker lost" in answer.error


async def test_a_stream_that_ends_early_or_short_is_a_failure():
    assert "without usage" in (await ask_once(stream(TOKEN))).error
    assert "without usage" in (await ask_once(stream(TOKEN, USAGE % 2))).error
    assert "1 output tokens instead of 2" in (await ask_once(stream(TOKEN, USAGE % 1, DONE))).error


async def test_a_refused_connection_is_a_failure_and_not_a_crash():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        async with benchmark_client() as client:
            answer = await ask(client, url, QUESTION)

    assert "ConnectError" in answer.error


async def test_a_compressed_answer_is_a_failure_and_is_not_unpacked():
    seen = {}

    async def answer(request: Request) -> Response:
        seen["encoding"] = request.headers["accept-encoding"]
        return Response(gzip.compress(TOKEN.encode()), headers={"content-encoding": "gzip"})

    assert "answers in 'gzip', which was not asked for" in (await ask_once(answer)).error
    assert seen["encoding"] == "identity"


async def test_a_line_without_end_is_a_failure():
    answer = await ask_once(stream("data: ", *["x" * 1024 * 1024] * 2))

    assert "sends a line of more than 1,048,576 bytes" in answer.error


async def test_a_refusal_is_read_no_further_than_what_is_quoted():
    async def answer(request: Request) -> Response:
        return Response("é" * 1024 * 1024, status_code=503)

    error = (await ask_once(answer)).error

    assert error.startswith("status 503: ééé")
    assert len(error) <= len("status 503: ") + 300
