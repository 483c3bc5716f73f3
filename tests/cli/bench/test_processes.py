import os

import pytest

from warmfleet_cli.bench.client import benchmark_client
from warmfleet_cli.bench.processes import BenchError, listening_url, spawned

SERVER = """
import http.server, json, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *arguments):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print("starting", os.getpid(), flush=True)
print(json.dumps({"event": "listening", "host": "127.0.0.1", "port": server.server_port}), flush=True)
server.serve_forever()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes a module `name` out of `source` that a child process can run."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(name, source):
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return make


async def test_a_server_is_ready_inside_the_block_and_gone_after_it(module, tmp_path):
    arguments = [module("bench_example_server", SERVER)]

    async with (
        benchmark_client() as client,
        spawned("w", arguments, log_folder=tmp_path, environment={}) as server,
    ):
        url = await server.ready(client)
        assert (await client.get(f"{url}/anything")).status_code == 200
        pid = int((tmp_path / "w.log").read_text().split()[1])

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_log_of_an_earlier_run_does_not_give_this_runs_address(module, tmp_path):
    (tmp_path / "w.log").write_text('{"event":"listening","host":"127.0.0.1","port":1}\n')
    arguments = [module("bench_example_server", SERVER)]

    async with spawned("w", arguments, log_folder=tmp_path, environment={}) as server:
        assert await server.listening() != "http://127.0.0.1:1"


async def test_a_server_that_dies_at_the_start_is_reported_with_the_end_of_its_log(module, tmp_path):
    arguments = [module("bench_example_failure", "raise SystemExit('model file is damaged')")]

    async with benchmark_client() as client:
        with pytest.raises(BenchError, match=r"w0 exited with 1(.|\n)*model file is damaged"):
            async with spawned("w0", arguments, log_folder=tmp_path, environment={}) as server:
                await server.ready(client)


def test_only_the_listening_line_gives_the_address():
    log = b'loading\n{"event":"loaded"}\n{"event":"listening","host":"127.0.0.1","port":8101,"uid":"a"}\n'

    assert listening_url(log) == "http://127.0.0.1:8101"
    assert listening_url(log[:20]) == ""
