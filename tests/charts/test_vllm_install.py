"""What `make vllm` installs, without installing it."""

import re
import shutil
import subprocess
import sys
from importlib.metadata import DistributionFinder, MetadataPathFinder

import pytest

from warmfleet_testing.resources.chart_render import REPOSITORY

SCRIPT = REPOSITORY / "images" / "vllm_cpu_name.py"
CLIENT_PINS = REPOSITORY / "tests" / "clients" / "requirements"
NEEDED_BY_MAKE = (
    "pyproject.toml", "constraints.txt", "constraints-uv.txt", "constraints-vllm.txt",
    "constraints-vllm-cpu.txt", "images/vllm_cpu_name.py",
    *(f"tests/clients/requirements/{file.name}" for file in CLIENT_PINS.glob("*.txt")),
)  # fmt: skip
METADATA = "Metadata-Version: 2.4\nName: vllm-cpu\nVersion: {version}\nSummary: has Name: and Version:\n"


def pinned(build):
    text = (REPOSITORY / f"constraints-vllm{build}.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", text, re.MULTILINE)), text


def install(folder, version):
    metadata = folder / f"vllm_cpu-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(METADATA.format(version=version), encoding="utf-8")
    (metadata / "entry_points.txt").write_text("[console_scripts]\nvllm = x:y\n", encoding="utf-8")


def name(folder):
    return subprocess.run(
        [sys.executable, SCRIPT, folder], check=False, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("build", ["", "-cpu"])
def test_every_file_of_vllm_is_pinned_by_hash_and_no_index_is_named(build):
    versions, text = pinned(build)
    requirements = re.split(r"\n(?=[a-z0-9])", text)
    assert len(requirements) > 100
    assert all("--hash=sha256:" in requirement for requirement in requirements)
    assert "://" not in text
    assert versions["torch"]


def test_gpu_and_cpu_get_the_same_version_of_vllm():
    (gpu, _), (cpu, _) = pinned(""), pinned("-cpu")
    assert gpu["vllm"] == cpu["vllm-cpu"]
    assert gpu["torch"] == cpu["torch"]


def test_the_cpu_build_leaves_out_what_needs_cuda_at_import():
    versions, _ = pinned("-cpu")
    assert not {"torchvision", "torchaudio", "torchcodec", "vllm"} & set(versions)


def test_the_cpu_build_gets_the_name_by_which_vllm_finds_its_version(tmp_path):
    install(tmp_path, "0.32.0")
    for _ in range(2):
        done = name(tmp_path)
        assert done.returncode == 0, done.stderr
    [found] = MetadataPathFinder.find_distributions(
        DistributionFinder.Context(name="vllm", path=[str(tmp_path)])
    )
    assert (found.metadata["Name"], found.version) == ("vllm", "0.32.0+cpu")
    assert found.metadata["Summary"] == "has Name: and Version:"
    assert [point.name for point in found.entry_points] == ["vllm"]


@pytest.mark.parametrize("versions", [(), ("0.31.0", "0.32.0")])
def test_without_exactly_one_cpu_build_no_name_is_written(tmp_path, versions):
    for version in versions:
        install(tmp_path, version)
    done = name(tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"error: {tmp_path}: expected one version of vllm-cpu, found {len(versions)}\n"
    assert not list(tmp_path.glob("vllm-*"))


@pytest.mark.parametrize(
    ("target", "build", "installed", "steps"),
    [
        ("vllm", "cpu", "cpu", ""),
        ("vllm", "gpu", "cpu", "installing vLLM for a gpu into .venv-vllm, from constraints-vllm.txt"),
        ("vllm", "cpu", "gpu", "installing vLLM for a cpu into .venv-vllm, from constraints-vllm-cpu.txt"),
        (
            "check-vllm",
            "gpu",
            "gpu",
            "installing vLLM for a cpu into .venv-vllm, from constraints-vllm-cpu.txt",
        ),
    ],
)
def test_the_other_build_is_installed_where_one_is_installed_already(
    tmp_path, target, build, installed, steps
):
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    mark = tmp_path / ".venv-vllm" / f".ready-{installed}"
    for needed in NEEDED_BY_MAKE:
        (tmp_path / needed).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / needed).touch()
    for made in (tmp_path / ".venv" / ".ready", mark):
        made.parent.mkdir(exist_ok=True)
        made.touch()

    planned = subprocess.run(
        ["make", "--dry-run", "--directory", tmp_path, target, f"VLLM_BUILD={build}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout

    assert steps in planned
    assert bool(steps) == ("installing vLLM" in planned)
