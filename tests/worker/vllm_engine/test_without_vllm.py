"""Where vLLM is not installed, nothing needs it, and a worker that is asked for it names what to do."""

import subprocess
import sys

import pytest

from warmfleet_testing.engine.worker_process import running_worker, tiny_served_model

IMPORT_ALL = """
import importlib, pkgutil, sys

class NoVllm:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"vllm", "zmq"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NoVllm())
needed = []
for package in ("contracts", "runtime", "router", "worker", "cli", "simulator", "operator"):
    root = importlib.import_module(f"warmfleet_{package}")
    for module in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError:
            needed.append(module.name)
print(needed)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_served_model(tmp_path_factory.mktemp("model"))


def test_no_module_needs_vllm_to_be_imported():
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=True, timeout=120
    )

    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        ("/nowhere/python", "there is no /nowhere/python: run `make vllm`"),
        (sys.executable, "has no vLLM (vllm is missing): run `make vllm`"),
    ],
    ids=["no interpreter", "an interpreter without it"],
)
def test_a_worker_that_is_asked_for_vllm_ends_with_what_to_install(model, python, reason):
    flags = ("--engine-type", "VLLM", "--block-size-tokens", "32")
    with running_worker(model, *flags, environment={"WARMFLEET_VLLM_PYTHON": python}, wait=False) as worker:
        assert worker.process.wait(60) == 2
        assert any(reason in line.get("reason", "") for line in worker.log_lines())
