"""Images built step by step over this machine's root, and started the hard way: any uid, nothing writable."""

import json
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.documents.dockerfile import parse_dockerfile
from warmfleet_testing.documents.image_replay import ImageReplay
from warmfleet_testing.engine.worker_process import tiny_served_model
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.resources.chart_render import REPOSITORY

ANY_UID = 1000650000
"""As OpenShift draws them; no user database knows it."""
START_SECONDS = 60
COMPILE = "python -m compileall -q -j 0"

# Not run: what concerns the base image alone, the system's packages and Python's own library; vLLM for GPUs.
SKIPPED = (
    "apt-get update",
    f'{COMPILE} --invalidation-mode unchecked-hash "$(python',
    "/opt/tools/bin/uv pip install --python /opt/vllm/bin/python --no-deps --require-hashes",
)
UV_CACHE = Path(os.environ.get("UV_CACHE_DIR") or Path.home() / ".cache" / "uv")


def build_environment(command):
    """uv takes from the cache that `make setup` filled, by links: torch alone would be copied for minutes."""
    links = "symlink" if "--require-hashes" in command else "copy"
    return {"UV_NO_CACHE": "0", "UV_OFFLINE": "1", "UV_CACHE_DIR": str(UV_CACHE), "UV_LINK_MODE": links}


def roomy_memory():
    """A folder in memory where a gigabyte fits, as on most machines; None where not."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > 4 * 2**30 else None


@pytest.fixture(scope="module")
def images():
    # Tens of thousands of links: on a disk, removing them takes longer than all else here.
    with tempfile.TemporaryDirectory(prefix="wf-images-", dir=roomy_memory()) as scratch:
        yield ImageReplay(
            parse_dockerfile((REPOSITORY / "Dockerfile").read_text(encoding="utf-8")),
            REPOSITORY,
            Path(scratch),
            build_environment=build_environment,
            skipped=lambda command: command.startswith(SKIPPED),
            readable=[UV_CACHE],
        )


def run(images, target, *arguments):
    return subprocess.run(
        images.command(target, list(arguments), uid=ANY_UID),
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("target", ["operator", "router", "worker-cpu", "worker-vllm"])
def test_the_entry_point_of_an_image_starts_as_any_user(images, target):
    done = run(images, target, *images.stage(target).entrypoint, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: python -m warmfleet_")
    assert images.stage(target).user == "65532:65532"


def test_an_image_installs_by_the_steps_of_the_dockerfile_only(images):
    for target in ("operator", "router", "worker-cpu", "worker-vllm"):
        images.stage(target)
    commands = images.commands_run
    assert sum("--require-hashes" in command for command in commands) == 6
    assert sum("images/finish_environment.py /opt/code" in command for command in commands) == 5
    assert sum(command.startswith(COMPILE) for command in commands) == 1, "the code, once for all"
    assert not any("apt-get" in command for command in commands)


@pytest.mark.parametrize(
    ("target", "module"), [("router", "aiohttp"), ("worker-cpu", "numpy"), ("operator", "warmfleet_operator")]
)
def test_an_image_holds_compiled_modules_that_python_loads_without_a_check(images, target, module):
    script = "import importlib.util as u; cached = u.find_spec('MODULE').cached\n"
    script += "print(int.from_bytes(open(cached, 'rb').read(8)[4:], 'little'))"
    done = run(images, target, "python", "-c", script.replace("MODULE", module))
    hashed_and_unchecked = 1
    assert done.stdout.split() == [str(hashed_and_unchecked)], done.stderr


def test_the_view_of_an_image_is_what_a_hardened_pod_has(images):
    script = "import os; print(os.getuid(), os.getgid(), os.getgroups(), os.environ['HOME'])\n"
    script += "import pathlib\n"
    script += "for place in ('/', '/opt/venv', '/tmp'):\n"
    script += "    try: pathlib.Path(place, 'probe').write_text('x'); print(place, 'written')\n"
    script += "    except OSError as error: print(place, error.strerror)\n"
    done = run(images, "router", "python", "-c", script)
    assert done.stdout.splitlines() == [
        f"{ANY_UID} 0 [] /nonexistent",
        "/ Read-only file system",
        "/opt/venv Read-only file system",
        "/tmp written",
    ]


@pytest.mark.parametrize(
    ("target", "inside", "outside"),
    [
        (
            "router",
            ["aiohttp", "tokenizers", "kubernetes", "uvloop"],
            ["torch", "kopf", "typer", "pytest", "pip", "hf_xet", "kubernetes.client.models.v1_pod"],
        ),
        (
            "operator",
            ["kopf", "httpx", "kubernetes"],
            ["torch", "typer", "pytest", "pip", "hf_xet", "kubernetes.aio.client.api.core_v1_api"],
        ),
        (
            "worker-cpu",
            ["gguf", "safetensors", "httpx", "pip", "numpy", "ml_dtypes", "warmfleet_worker.fetch"],
            ["torch", "triton", "sympy", "networkx", "kopf", "typer", "pytest"],
        ),
        (
            "worker-vllm",
            ["gguf", "safetensors", "httpx", "pip", "warmfleet_worker.fetch"],
            ["torch", "triton", "sympy", "networkx", "kopf", "typer", "pytest"],
        ),
    ],
)
def test_an_image_holds_what_its_component_imports_and_no_more(images, target, inside, outside):
    script = "import sys, importlib.util as u; print([bool(u.find_spec(name)) for name in sys.argv[1:]])"
    done = run(images, target, "python", "-c", script, *inside, *outside)
    assert json.loads(done.stdout.lower()) == [True] * len(inside) + [False] * len(outside), done.stderr


def test_the_image_for_cpus_computes_by_the_native_step_without_a_compiler(images):
    script = "from warmfleet_worker.native.build import library_path\n"
    script += "from warmfleet_worker.native.library import native_library\n"
    script += "print(library_path().parent, len(native_library().levels()) > 0)"
    done = run(images, "worker-cpu", "env", "CC=/nonexistent", "python", "-c", script)
    assert done.stdout.startswith("/opt/code/warmfleet_worker/native "), done.stderr


def test_an_image_has_its_version(images):
    script = "from importlib.metadata import version; print(version('warmfleet'))"
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{run(images, "operator", "python", "-c", script).stdout.strip()}"' in project


def test_the_server_beside_vllm_starts_the_interpreter_that_holds_it(images):
    """Its environment has all but vLLM here, and the engine process names what it misses."""
    script = "import os, sys, warmfleet_worker.app\n"
    script += "from warmfleet_worker.engine_program import engine_program\n"
    script += "program = engine_program('VLLM')\n"
    script += "print('torch' in sys.modules, program.python, program.module)"
    done = run(images, "worker-vllm", "python", "-c", script)
    assert done.stdout.split() == [
        *("False", "/opt/vllm/bin/python", "warmfleet_worker.vllm_engine.process")
    ], done.stderr
    engine = run(images, "worker-vllm", "/opt/vllm/bin/python", "-c", "import warmfleet_worker.vllm_engine")
    assert engine.returncode == 0, engine.stderr


ASKS_FOR_CREDENTIALS = """
import asyncio, sys
from pathlib import Path
from warmfleet_runtime.kubernetes.config import client_config
async def main():
    async with client_config(Path(sys.argv[1]) if sys.argv[1:] else None) as config:
        print(config.server, await config.authorization())
asyncio.run(main())
"""


@pytest.mark.parametrize("target", ["operator", "router"])
def test_an_image_without_generated_classes_still_has_every_way_to_log_in(images, target):
    """What the `kubernetes` package is for: service accounts, exec plugins, options that need it."""
    upper = images.stage(target).upper
    account = upper / "var/run/secrets/kubernetes.io/serviceaccount"
    account.mkdir(parents=True, exist_ok=True)
    (account / "token").write_text("of-the-pod")
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", account / "ca.crt")
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    answer = json.dumps({**plugin, "status": {"token": "of-the-plugin"}})
    command = {"apiVersion": plugin["apiVersion"], "command": "echo", "args": [answer]}
    users = {"exec": {"exec": command}, "refused": {"username": "u", "password": "p"}}
    for name, user in users.items():
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        kubeconfig = {
            "current-context": "c",
            "contexts": [context],
            "clusters": [{"name": "c", "cluster": {"server": "https://api", "tls-server-name": "n"}}],
            "users": [{"name": "u", "user": user}],
        }
        (upper / name).write_text(json.dumps(kubeconfig))
    script = ("python", "-c", ASKS_FOR_CREDENTIALS)
    pod = ("env", "KUBERNETES_SERVICE_HOST=10.0.0.1", "KUBERNETES_SERVICE_PORT=443")
    inside = run(images, target, *pod, *script)
    assert inside.stdout == "https://10.0.0.1:443 bearer of-the-pod\n", inside.stderr
    plugged = run(images, target, *script, "/exec")
    assert plugged.stdout == "https://api Bearer of-the-plugin\n", plugged.stderr
    assert "ModuleNotFoundError" not in run(images, target, *script, "/refused").stderr


@contextmanager
def started(images, target, *arguments):
    """The image's entry point with `arguments`; gives the ports that it announces, one after the other."""
    command = images.command(target, [*images.stage(target).entrypoint, *arguments], uid=ANY_UID)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:

        def port():
            line = process.stdout.readline()
            assert line, process.stderr.read()
            return json.loads(line)["port"]

        try:
            yield port
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 0, errors


def test_a_router_in_its_image_answers(images):
    with started(images, "router", "--port", "0") as port, httpx.Client(verify=NO_TLS, timeout=10) as client:
        url = f"http://127.0.0.1:{port()}"
        assert client.get(f"{url}/livez").status_code == 200
        assert client.get(f"{url}/v1/models").json() == {"object": "list", "data": []}


def test_an_operator_in_its_image_answers_while_the_api_server_does_not(images):
    """Its kubeconfig names a port without a listener."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "none",
        "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
        "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "none", "user": {"token": "none"}}],
    }
    path = images.stage("operator").upper / "kubeconfig"
    path.write_text(json.dumps(kubeconfig), encoding="utf-8")
    path.chmod(0o644)
    flags = ("--release-namespace", "n", "--kubeconfig", "/kubeconfig", "--host", "127.0.0.1")
    ports = ("--health-port", "0", "--metrics-port", "0")
    with (
        started(images, "operator", *flags, *ports) as port,
        httpx.Client(verify=NO_TLS, timeout=10) as client,
    ):
        health, metrics = port(), port()
        assert client.get(f"http://127.0.0.1:{health}/livez").status_code == 200
        assert client.get(f"http://127.0.0.1:{health}/readyz").status_code == 503
        assert "warmfleet_operator_" in client.get(f"http://127.0.0.1:{metrics}/metrics").text


def test_a_worker_in_the_image_for_cpus_answers_without_torch(images):
    folder = images.stage("worker-cpu").upper / "tiny"
    tiny_served_model(folder)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    flags = ("--model", "/tiny", "--served-name", "tiny", "--port", "0", "--kv-cache-bytes", "1048576")
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 4, "ignore_eos": True}
    with (
        started(images, "worker-cpu", *flags) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port()}", verify=NO_TLS, timeout=30) as client,
    ):
        eventually(lambda: client.get("/readyz").status_code, 200, seconds=START_SECONDS)
        answer = client.post("/v1/completions", json=body).json()
        cache = client.get("/internal/cache").json()
    assert answer["usage"]["completion_tokens"] == 4
    assert (cache["dtype"], cache["exact"]) == ("BFloat16", True)


def test_a_worker_image_without_a_baked_model_has_an_empty_home_that_all_can_read(images):
    script = "import os; print(os.listdir('/opt/warmfleet'), os.environ['WARMFLEET_IMAGE_HOME'])"
    assert run(images, "worker-cpu", "python", "-c", script).stdout == "[] /opt/warmfleet\n"
