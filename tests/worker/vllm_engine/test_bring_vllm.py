"""docs/how-to/vllm.md against what the engine process does with each flag that it names."""

import argparse
import re

import pytest
import yaml

from warmfleet_testing.documents.documents import REPOSITORY, tables
from warmfleet_worker.settings import EngineSettings
from warmfleet_worker.vllm_engine.arguments import UnfitSettingsError, engine_arguments
from warmfleet_worker.vllm_engine.extra_arguments import with_extra_arguments

PAGE = (REPOSITORY / "docs" / "how-to" / "vllm.md").read_text(encoding="utf-8")
FIELDS, WORDS, REFUSED = (
    next(table for table in tables(PAGE) if table[0] == heading)
    for heading in (
        ["vLLM", "ModelDeployment", "example"],
        ["flag", "in `extraArgs`"],
        ["flag", "instead"],
    )
)
FLAG = re.compile(r"--[a-z][a-z-]+")
ENGINES_FIELDS = {
    "--model", "--served-model-name", "--dtype", "--max-model-len", "--max-num-seqs",
    "--max-num-batched-tokens", "--gpu-memory-utilization", "--kv-cache-memory-bytes", "--block-size",
    "--tensor-parallel-size",
}  # fmt: skip
"""Of the first table: those that the engine process sets, each with a value."""


def flags(table: list[list[str]]) -> list[str]:
    return [flag for row in table[1:] for flag in FLAG.findall(row[0])]


def parser() -> argparse.ArgumentParser:
    """As vLLM's: every flag that the page names, with any value."""
    made = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in sorted({*FLAG.findall(PAGE)} - {"--namespace"}):
        made.add_argument(flag, nargs="?", const=True)
    return made


def given(*words: str) -> dict[str, object]:
    settings = EngineSettings(model_path="/models/m", served_name="m", kv_cache_bytes=2**30)
    return with_extra_arguments(engine_arguments(settings, on_cpu=False), words, parser())


@pytest.mark.parametrize("flag", sorted(ENGINES_FIELDS))
def test_a_flag_with_a_field_is_refused_and_its_field_is_the_one_of_the_page(flag: str) -> None:
    paths = [row[1].strip("`") for row in FIELDS[1:] if flag in FLAG.findall(row[0])]

    with pytest.raises(UnfitSettingsError) as refused:
        given(flag, "elsewhere")

    named = re.search(r"contradicts ([\w.]+)", str(refused.value))
    assert named is not None
    assert all(path.removeprefix("spec.").startswith(named[1]) for path in paths), (paths, str(refused.value))


@pytest.mark.parametrize("flag", flags(REFUSED))
def test_a_flag_that_is_warmfleets_is_refused(flag: str) -> None:
    with pytest.raises(UnfitSettingsError, match=f"{flag} .*contradicts warmfleet"):
        given(flag, "1")


@pytest.mark.parametrize("row", WORDS[1:], ids=lambda row: row[0])
def test_a_flag_without_a_field_goes_over_as_it_stands(row: list[str]) -> None:
    words = yaml.safe_load(row[1].strip("`"))

    taken = given(*words)

    name = words[0].removeprefix("--").replace("-", "_")
    assert taken[name] == (words[1] if len(words) > 1 else True)


def test_every_flag_that_a_field_sets_is_on_the_page() -> None:
    settings = EngineSettings(model_path="/models/m", served_name="m", kv_cache_bytes=2**30)
    ours = {f"--{name.replace('_', '-')}" for name in engine_arguments(settings, on_cpu=False)}
    named = set(flags(FIELDS)) | set(flags(REFUSED)) | {"--enable-prefix-caching"}

    # One that only the engine process has a use for.
    assert ours - named <= {"--enable-logging-iteration-details"}
