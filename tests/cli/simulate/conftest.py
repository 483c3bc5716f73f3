"""Traces and an objective for `warmfleet simulate`."""

import json
from pathlib import Path

import pytest

from warmfleet_testing.truth.simulate_command import SLO


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Forty prompts, each twice, so that every second one can hit."""
    path = tmp_path / "trace.jsonl"
    lines = [
        {
            "timestamp": 500 * number,
            "input_length": 1500,
            "output_length": 20,
            "hash_ids": [3 * (number // 2) + block for block in range(3)],
        }
        for number in range(80)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def slo(tmp_path: Path) -> Path:
    path = tmp_path / "slo.yaml"
    path.write_text(SLO)
    return path


@pytest.fixture
def busy(tmp_path: Path) -> Path:
    """Four prompts a second, which are too many for one replica."""
    lines = [
        {
            "timestamp": number * 250,
            "input_length": 2048,
            "output_length": 40,
            "hash_ids": list(range(4 * number, 4 * number + 4)),
        }
        for number in range(200)
    ]
    path = tmp_path / "busy.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
