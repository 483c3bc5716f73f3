"""What `warmfleet bench load` asks, and what it reports."""

import json

import pytest
from typer.testing import CliRunner

from warmfleet_cli.__main__ import app
from warmfleet_cli.bench.client import Answer
from warmfleet_cli.bench.load import LoadResult, LoadShape, find_target
from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_testing.router.stub_router import stub_router

SHAPE = LoadShape(
    in_flight=2, seconds=1.0, prefixes=3, prefix_tokens=20, question_tokens=4, output_tokens=8, seed=1
)


def answer(number: int, *, error: str = "") -> Answer:
    if error:
        return Answer(str(number), error=error)
    return Answer(
        str(number),
        first_token_seconds=number / 10,
        total_seconds=1.0,
        prompt_tokens=24,
        cached_tokens=12,
        output_tokens=8,
    )


def test_prompts_share_prefixes_in_turn_and_are_the_same_at_each_run() -> None:
    prompt = SHAPE.prompts(range(100, 200))
    asked = [prompt(number) for number in range(7)]

    assert [len(tokens) for tokens in asked] == [24] * 7
    assert asked[0][:20] == asked[3][:20] == asked[6][:20] != asked[1][:20]
    assert len({tuple(tokens[20:]) for tokens in asked}) == 7
    assert SHAPE.prompts(range(100, 200))(5) == asked[5]


def test_the_result_counts_failures_by_kind_and_times_of_successes() -> None:
    answers = [answer(1), answer(2), answer(3), *(answer(0, error="status 503: full") for _ in range(2))]
    result = LoadResult(2.0, answers)

    assert result.lines() == [
        "5 requests in 2.0 s, 2 failed, 12.0 tokens/s, 50 % of prompt tokens cached",
        "first token: p50 200 ms, p95 300 ms",
        "2 x status 503: full",
    ]
    assert json.loads(json.dumps(result.record()))["errors"] == {"status 503: full": 2}


def test_without_any_answer_there_are_no_times() -> None:
    assert LoadResult(1.0, [answer(0, error="e")]).lines() == ["1 requests in 1.0 s, 1 failed", "1 x e"]
    assert LoadResult(1.0, []).record()["first_token_p50_seconds"] is None


def test_without_a_fleet_it_is_the_error_of_every_command() -> None:
    result = CliRunner().invoke(app, ["bench", "load", "--url", "http://127.0.0.1:1"])

    assert "http://127.0.0.1:1 does not answer" in result.stderr
    assert result.exit_code == ExitCode.NOT_RUNNING


def test_errors_of_a_server_are_one_printable_line_each() -> None:
    result = LoadResult(1.0, [answer(0, error="status 503: \x1b[2J\nready")])

    assert result.lines()[-1] == "1 x status 503: \\u001b[2J\\u000aready"


def test_the_tokens_of_a_server_are_read_to_a_bound() -> None:
    with stub_router() as router:
        router.endpoints = [{"padding": "x" * 5 * 1024 * 1024}]
        url = f"http://127.0.0.1:{router.port}"
        with pytest.raises(CliError, match="/tokenize answers more than 4,194,304 bytes"):
            find_target(url, "m", "", seed=1)
