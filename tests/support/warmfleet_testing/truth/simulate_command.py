"""`warmfleet simulate` in this process, and the objective of its tests."""

from typer.testing import CliRunner, Result

from warmfleet_cli.__main__ import app

SLO = """
workloads:
  chat: {gpu: L4, model: Llama-3.1-8B, firstTokenMilliseconds: 2000, betweenTokensMilliseconds: 150}
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", "--jobs", "1", *arguments])
