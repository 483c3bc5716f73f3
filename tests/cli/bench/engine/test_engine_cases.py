"""Which steps are measured, what memory they need, and how their time is taken."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from warmfleet_cli.bench.app import parse_counts, parse_names
from warmfleet_cli.bench.engine.benchmark import blocks_of, cases_that_fit, context_memory_bytes
from warmfleet_cli.bench.engine.case_loop import LEAST_STEPS, measured_steps
from warmfleet_cli.bench.engine.cases import (
    BLOCK_SIZE_TOKENS,
    SPARE_TOKENS,
    Case,
    cases_of,
    decoded,
    encoded,
    sequence_tokens,
)
from warmfleet_cli.bench.engine.programs import llama_program, vllm_program
from warmfleet_worker.engine_program import VLLM_PYTHON_VARIABLE

GIB = 2**30
SMALL, LARGE = Case("decode", 1, 128), Case("decode", 4, 4096)


class Engine:
    """Takes `seconds` for each step."""

    def __init__(self, seconds):
        self.now = 0.0
        self.calls = []
        self._seconds = seconds

    def prepare(self, _case, variant):
        self.calls.append(("prepare", variant))
        self.now += 100

    def step(self, _case, index):
        self.calls.append(("step", index))
        self.now += self._seconds * (10 if index == 0 else 1)
        return [7]

    def reset(self, _case):
        self.calls.append(("reset",))


def test_long_contexts_are_decoded_by_one_sequence_alone():
    cases = cases_of((1, 4), (128, 16_384), 512)

    assert [case.name for case in cases] == [
        "decode 1 x 128",
        "decode 4 x 128",
        "decode 1 x 16384",
        "prefill 512",
    ]
    assert [case.tokens for case in cases] == [1, 4, 1, 512]


def test_sequences_have_room_for_the_longest_of_their_cases():
    assert sequence_tokens([SMALL, LARGE, Case("decode", 2, 128)]) == [4096 + SPARE_TOKENS] * 4
    assert sequence_tokens([Case("decode", 1, 4096), Case("decode", 2, 128)]) == [
        4096 + SPARE_TOKENS,
        128 + SPARE_TOKENS,
    ]
    assert blocks_of([SMALL]) * BLOCK_SIZE_TOKENS == 128 + SPARE_TOKENS


def test_cases_that_do_not_fit_are_named_with_their_sizes():
    fitting, skipped = cases_that_fit([LARGE, SMALL], 2**20, 300 * 2**20)

    assert fitting == [SMALL]
    assert skipped == {LARGE.name: "needs 16.2 GiB of context in each engine; 0.3 are free"}


def test_weights_of_all_engines_leave_the_rest_for_contexts():
    assert context_memory_bytes(10 * GIB, GIB, 3) == GIB // 3  # of 8 less 5 of weights and 2 for reads
    assert context_memory_bytes(10 * GIB, GIB, 3, on_gpu=True) == 5 * GIB // 3
    assert context_memory_bytes(GIB, GIB, 3) == 0


def test_a_case_survives_its_message():
    assert decoded(json.loads(json.dumps(encoded(LARGE)))) == LARGE


@pytest.mark.parametrize(("limit_seconds", "steps"), [(100.0, 8), (0.0, LEAST_STEPS), (5.0, 5)])
def test_a_case_takes_as_many_steps_as_its_time_allows_and_three_at_least(limit_seconds, steps):
    engine = Engine(1.0)

    seconds, tokens = measured_steps(engine, SMALL, "2", 8, limit_seconds, lambda: engine.now)

    assert seconds == [1.0] * steps
    assert tokens == [7]
    assert engine.calls == [
        ("prepare", "2"),
        *(("step", index) for index in range(steps + 1)),
        ("reset",),
    ]


PROGRAM = """
import sys
from warmfleet_cli.bench.engine.case_loop import serve

class Engine:
    name, dtype, variants = "an engine", "bfloat16", ["1"]
    def prepare(self, case, variant):
        print("a library prints this")
        if case.batch > 1:
            raise MemoryError("no room")
    def step(self, case, index):
        return [index]
    def reset(self, case):
        pass

def fail():
    raise ImportError("no library")

sys.exit(serve(fail if sys.argv[1:] else Engine))
"""


def answers(*arguments, cases=()):
    asked = [{"case": encoded(case), "variant": "1", "steps": 3, "seconds": 1.0} for case in cases]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        input="".join(json.dumps(one) + "\n" for one in asked),
        capture_output=True,
        text=True,
        check=False,
    )
    return [json.loads(line) for line in io.StringIO(done.stdout)]


def test_a_program_answers_each_case_and_outlives_one_that_fails():
    description, refused, measured = answers(cases=[LARGE, SMALL])

    assert description == {"name": "an engine", "dtype": "bfloat16", "variants": ["1"]}
    assert refused == {"error": "MemoryError: no room"}
    assert len(measured["seconds"]) == 3
    assert measured["tokens"] == [0]


def test_a_program_that_cannot_start_answers_why():
    assert answers("fail") == [{"error": "ImportError: no library"}]


def test_lists_of_the_command_line_are_checked():
    assert parse_counts("8,1, 4,1", "--batches", most=16) == (1, 4, 8)
    assert parse_names("b,a", ("a", "b", "c"), "letter") == ("a", "b")
    for text in ("", "0", "17", "x", "1,-2"):
        with pytest.raises(typer.BadParameter, match="--batches wants numbers from 1 to 16"):
            parse_counts(text, "--batches", most=16)
    with pytest.raises(typer.BadParameter, match="'d' is no letter; known are: a, b, c"):
        parse_names("a,d", ("a", "b", "c"), "letter")
    with pytest.raises(typer.BadParameter, match="at least one letter is needed; known are: a, b, c"):
        parse_names(" ,", ("a", "b", "c"), "letter")


def test_llama_cpp_has_memory_for_as_many_sequences_as_each_context_has():
    program = llama_program(Path("model.gguf"), [*cases_of((1, 4), (128, 16_384), 512), LARGE])

    assert json.loads(program.arguments[1]) == {"128": 4, "16384": 1, "4096": 4}


def test_vllm_has_memory_for_every_context_and_a_prompt(tmp_path, monkeypatch):
    monkeypatch.setenv(VLLM_PYTHON_VARIABLE, str(tmp_path / "none"))
    cases = cases_of((1, 4), (128, 1024), 512)
    program = vllm_program(tmp_path, "float32", cases, 1000)

    _, dtype, sequences, tokens, kv_bytes = program.arguments
    assert (dtype, sequences, tokens) == ("float32", "4", "1088")
    assert int(kv_bytes) == 1.25 * 1000 * 4 * 1088
    assert "run `make vllm`" in program.missing
