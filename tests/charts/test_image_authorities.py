"""Certificate authorities of a mirror or a proxy: from `make images CA_FILE=...` to what downloads."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from warmfleet_testing.documents.dockerfile import parse_dockerfile
from warmfleet_testing.resources.chart_render import REPOSITORY

FILE = parse_dockerfile((REPOSITORY / "Dockerfile").read_text(encoding="utf-8"))
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


@pytest.fixture
def build(tmp_path):
    """Runs the builder with an engine that keeps its arguments, one file each."""
    (tmp_path / "docker").write_text('#!/bin/sh\nfor one; do echo "$one" >> "$CALLS"; done\necho 1\n')
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "images").mkdir()
    for name in ("images/build.py", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path / name)

    def run(*arguments):
        calls = tmp_path / "calls"
        calls.write_text("")
        command = [sys.executable, "images/build.py", "--registry", "r/x", "--target", "router", *arguments]
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CALLS": str(calls)}
        done = subprocess.run(
            [*command, "--engine", "docker"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done, calls.read_text()

    return run


def test_authorities_of_several_files_reach_the_build_as_one_argument(build, tmp_path):
    files = [tmp_path / name for name in ("proxy.pem", "mirror.pem")]
    for file in files:
        file.write_text(CERTIFICATE)
    done, calls = build("--ca-file", str(files[0]), "--ca-file", str(files[1]))
    assert done.returncode == 0, done.stderr
    assert calls.count("EXTRA_CA_PEM=") == 1
    assert calls.count("-----BEGIN CERTIFICATE-----") == 2
    assert "MIIB" not in done.stdout
    done, calls = build()
    assert "EXTRA_CA_PEM" not in calls


@pytest.mark.parametrize(
    ("content", "states"),
    [(None, "cannot be read"), ("words", "holds no certificate"), (CERTIFICATE * 2000, "at most 100000")],
)
def test_a_file_that_cannot_be_used_is_refused_before_anything_is_built(build, tmp_path, content, states):
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    done, calls = build("--ca-file", str(file))
    assert done.returncode == 2
    assert states in done.stderr
    assert calls == ""


def test_pip_and_uv_trust_the_base_and_the_argument(tmp_path):
    (tools,) = [stage for stage in FILE.stages.values() if stage.name == "tools"]
    environment = {name: value for item in tools.of("ENV") for name, value in item.pairs.items()}
    bundle = environment["PIP_CERT"]
    assert environment["SSL_CERT_FILE"] == bundle
    (step,) = [item.text for item in tools.of("RUN") if bundle in item.text]
    trusted = tmp_path / "trusted.pem"
    subprocess.run(
        ["sh", "-ec", step.replace(bundle, str(trusted))],
        env={"EXTRA_CA_PEM": CERTIFICATE, "PATH": "/usr/bin:/bin"},
        check=True,
        timeout=60,
    )
    base = Path("/etc/ssl/certs/ca-certificates.crt")
    text = trusted.read_text()
    assert text.startswith(base.read_text() if base.exists() else "")
    assert text.endswith(f"{CERTIFICATE}\n")


def test_no_stage_of_a_final_image_declares_the_authorities():
    for target in ("operator", "router", "worker-cpu", "worker-cuda", "worker-vllm"):
        declared = [item.text for stage in FILE.lineage(target) for item in stage.of("ARG")]
        assert declared == []
