"""What an engine process is started with."""

import json

import pytest

from warmfleet_contracts.names import NAMESPACE_KEY_VARIABLE, WORKER_TOKEN_VARIABLE
from warmfleet_worker.engine_program import EngineProgram
from warmfleet_worker.engine_start import start_engine
from warmfleet_worker.settings import EngineSettings

MODULE = """
import json, os, socket, sys
with socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1])) as server:
    server.sendall(json.dumps(dict(os.environ)).encode())
"""


@pytest.fixture
def engines_environment(tmp_path, monkeypatch):
    (tmp_path / "printing_engine.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def started():
        engine = start_engine(EngineSettings(model_path="/m"), EngineProgram("printing_engine"))
        with engine.connection as connection, connection.makefile() as sent:
            text = sent.read()
        assert engine.process.wait(10) == 0
        return json.loads(text)

    return started


def test_an_engine_gets_the_environment_without_the_secrets_of_its_server(engines_environment, monkeypatch):
    for name in (NAMESPACE_KEY_VARIABLE, WORKER_TOKEN_VARIABLE):
        monkeypatch.setenv(name, "00" * 32)
    monkeypatch.setenv("NAME_OF_A_USER", "kept")

    found = engines_environment()

    assert found["NAME_OF_A_USER"] == "kept"
    assert not {NAMESPACE_KEY_VARIABLE, WORKER_TOKEN_VARIABLE} & found.keys()


@pytest.mark.parametrize(("given", "found"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_its_threads_sleep_unless_the_user_has_them_spin(engines_environment, monkeypatch, given, found):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if given:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    assert engines_environment()["OMP_WAIT_POLICY"] == found
