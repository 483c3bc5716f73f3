"""A model of the hub for `warmfleet up`: a hub on a local port, a home folder, and what is printed."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.local.hub_model import ensure_hub_model
from warmfleet_cli.local.plan import require_local_support
from warmfleet_contracts.errors import ModelError
from warmfleet_contracts.resources.manifests import parse_manifest
from warmfleet_contracts.resources.model_deployment import ModelDeployment
from warmfleet_testing.engine.fake_hub import REPOSITORY, REVISION, FakeHub, running_hub
from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_testing.engine.tiny_tokenizer import tiny_tokenizer
from warmfleet_worker.model_store.fetch import hub_client
from warmfleet_worker.model_store.manifest import verify_model_folder

MOVED = "f" * 40
TOKEN = "hf_" + "planted" * 4


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_model_folder("llama", tmp_path_factory.mktemp("repository"))
    (folder / "tokenizer.json").write_text(json.dumps(tiny_tokenizer()))
    return folder


def deployment(engine: str = "Warmfleet", **hub: object) -> ModelDeployment:
    return parse_manifest(
        {
            "apiVersion": "warmfleet.dev/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": "m"},
            "spec": {
                "model": {"source": {"huggingFace": {"repository": REPOSITORY, **hub}}},
                "engine": {"type": engine},
                "kvCache": {"size": "64Mi"},
            },
        },
        origin="test",
        local=True,
    )


class Home:
    """A home folder, and what `warmfleet up` printed into it."""

    def __init__(self, path: Path) -> None:
        self.path, self.output = path, io.StringIO()

    def ensure(self, hub: FakeHub, token: str = "", **source: Any) -> Path:
        console = Console(file=self.output, width=200)
        environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": token}
        return ensure_hub_model(deployment(**source), self.path, console, environment)


def test_a_branch_is_served_at_its_commit_and_fetched_once(repository: Path, tmp_path: Path) -> None:
    home = Home(tmp_path)
    with running_hub(repository) as hub:
        hub.branches = {"main": REVISION}
        first = home.ensure(hub)
        fetched = len(hub.seen)
        assert home.ensure(hub) == first
        assert home.ensure(hub, revision=REVISION) == first  # what was resolved, written down
        assert len(hub.seen) == fetched + 1

        hub.branches, hub.revision = {"main": MOVED}, MOVED
        assert home.ensure(hub) != first

    assert verify_model_folder(first).source == f"huggingface:{REPOSITORY}@{REVISION}"
    printed = home.output.getvalue()
    assert f"model acme/tiny: main is {REVISION}" in printed
    assert "model acme/tiny: downloading (file model.safetensors, done bytes" in printed


def test_without_the_hub_the_commit_of_the_last_time_is_served(repository: Path, tmp_path: Path) -> None:
    home = Home(tmp_path)
    with running_hub(repository) as hub:
        hub.branches = {"main": REVISION, "v1": REVISION}
        folder = home.ensure(hub)
        hub.failures = [503]
        assert home.ensure(hub) == folder
        assert "the commit of the last time is used (reason the hub answered 503)" in home.output.getvalue()


def test_without_the_hub_and_a_last_time_there_is_no_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hub_client, "MAX_ATTEMPTS", 1)
    with running_hub() as hub, pytest.raises(ModelError, match="the hub answered 503"):
        hub.failures = [503]
        Home(tmp_path).ensure(hub, revision="v1")


def test_a_refusal_names_the_token_of_this_machine(repository: Path, tmp_path: Path) -> None:
    home = Home(tmp_path)
    with running_hub(repository) as hub:
        hub.branches, hub.token = {"main": REVISION}, TOKEN
        with pytest.raises(CliError, match="401 without a token") as refused:
            home.ensure(hub)
        assert "$HF_TOKEN" in refused.value.advice
        assert refused.value.exit_code is ExitCode.MODEL
        assert home.ensure(hub, token=TOKEN).is_dir()
        with pytest.raises(CliError, match="has no branch, tag or commit nope"):
            home.ensure(hub, token=TOKEN, revision="nope")

    assert TOKEN not in home.output.getvalue()


def test_what_only_vllm_can_compute_is_fetched_for_vllm_alone(repository: Path, tmp_path: Path) -> None:
    home = Home(tmp_path)
    with running_hub(repository) as hub:
        config = json.loads(hub.files["config.json"]) | {"architectures": ["SomeOtherForCausalLM"]}
        hub.files["config.json"] = json.dumps(config).encode()
        with pytest.raises(CliError, match="SomeOtherForCausalLM"):
            home.ensure(hub, revision=REVISION)
        assert not hub.downloads("model.safetensors")
        assert home.ensure(hub, revision=REVISION, engine="VLLM").is_dir()


@pytest.mark.parametrize("damaged", [b"", b"[]", b'{"a": 1}', b"\xff"])
def test_a_damaged_record_is_none(repository: Path, tmp_path: Path, damaged: bytes) -> None:
    with running_hub(repository) as hub:
        hub.branches = {"main": REVISION}
        (tmp_path / "hub").mkdir()
        (tmp_path / "hub" / "resolved.json").write_bytes(damaged)
        assert Home(tmp_path).ensure(hub).is_dir()


def test_a_secret_of_the_cluster_is_one_notice() -> None:
    named = deployment(tokenSecretRef={"name": "hub", "key": "token"})

    (notice,) = require_local_support(named, origin="fleet.yaml")

    assert "$HF_TOKEN" in notice
    assert require_local_support(deployment(), origin="fleet.yaml") == []
