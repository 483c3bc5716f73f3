"""From nothing to the first token with the three commands of the README, and the real model.

What `warmfleet devcluster up` prints is what runs: the commands are pasted, not repeated here.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from warmfleet_devcluster.state import StateFolder
from warmfleet_runtime.home import warmfleet_home
from warmfleet_runtime.process_identity import is_alive
from warmfleet_testing.cluster.installed import chat_request
from warmfleet_testing.cluster.leftovers import machine, processes_that_name
from warmfleet_testing.cluster.steady_load import OpenStream
from warmfleet_testing.engine.catalog_model import CATALOG_MODEL_NAME, pulled_catalog_model
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_worker.native.build import is_whole, library_in

REPOSITORY = Path(__file__).parents[3]
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
"""The model's greedy answer, which the worker's own tests hold to transformers."""
PATIENCE_SECONDS = 300


class Terminal:
    """A shell in the repository, with a warmfleet home of its own in which model and programs are cached."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        for cached in ("models", "controlplane"):
            (self.home / cached).symlink_to(warmfleet_home() / cached)
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "WARMFLEET_HOME": str(self.home), "PATH": programs}
        self.preamble = ""
        """What `warmfleet devcluster up` wants to be exported."""

    def run(self, command: str) -> str:
        """What a command printed."""
        done = subprocess.run(
            ["bash", "-euc", f"{self.preamble}\n{command}"],
            cwd=REPOSITORY,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        return done.stdout

    @contextmanager
    def port_forward(self) -> Iterator[str]:
        """The router's Service on a port of this machine."""
        command = "exec kubectl port-forward service/warmfleet-router :80"
        process = subprocess.Popen(
            ["bash", "-euc", f"{self.preamble}\n{command}"],
            cwd=REPOSITORY,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert found is not None
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            process.kill()
            process.communicate()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    pulled_catalog_model()
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.run("warmfleet devcluster down")


@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_three_commands_lead_from_nothing_to_an_answer_and_one_leads_back(terminal: Terminal) -> None:
    before = machine()
    began = time.monotonic()
    seconds: dict[str, float] = {}

    def passed(what: str) -> None:
        seconds[what] = time.monotonic() - began

    *exports, install, apply = terminal.run("warmfleet devcluster up").splitlines()
    passed("devcluster up")
    assert is_whole(library_in(terminal.home))
    terminal.preamble = "\n".join(exports)
    notes = terminal.run(install)
    passed("helm install")
    assert "STATUS: deployed" in notes
    terminal.run(apply)
    terminal.run("kubectl wait --for=condition=Ready modeldeployments.warmfleet.dev/smollm2 --timeout=240s")
    passed("Ready")
    with terminal.port_forward() as url:
        stream = OpenStream(url, CATALOG_MODEL_NAME, QUESTION, tokens=64, ignore_eos=False)
        while not stream.answer.text and stream.is_open:
            time.sleep(0.005)
        passed("first token")
        streamed = stream.wait()
        whole = httpx.post(
            f"{url}/v1/chat/completions",
            json=chat_request(CATALOG_MODEL_NAME, QUESTION, max_tokens=64),
            timeout=60,
            verify=NO_TLS,
            trust_env=False,
        ).json()
    sys.stdout.write("\nthree commands: " + ", ".join(f"{w} {s:.1f} s" for w, s in seconds.items()) + "\n")

    assert (streamed.text, streamed.error) == (ANSWER, "")
    assert whole["choices"][0]["message"]["content"] == ANSWER
    assert terminal.run("kubectl get mdep smollm2 -o jsonpath={.status.readyReplicas}") == "2"
    mine = "-l warmfleet.dev/model-deployment=smollm2 -o name"
    kinds = "deployments,services,poddisruptionbudgets,serviceaccounts,networkpolicies,pods"
    made = [line.split("/")[0] for line in terminal.run(f"kubectl get {kinds} {mine}").split()]
    assert sorted(made) == [
        "deployment.apps",
        "networkpolicy.networking.k8s.io",
        "networkpolicy.networking.k8s.io",  # of pods that fetch
        "pod",
        "pod",
        "poddisruptionbudget.policy",
        "service",
        "serviceaccount",
    ]
    assert "Phase:          Succeeded" in terminal.run("helm test warmfleet")

    running = StateFolder(terminal.home / "devcluster").read()
    assert running is not None
    terminal.run("warmfleet devcluster down")
    assert not [part.name for part in running.components if is_alive(part.identity)]
    assert processes_that_name(str(terminal.home)) == set()
    assert machine() == before
