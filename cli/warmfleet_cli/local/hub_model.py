"""A model of the hub on this machine: the folder of one commit, fetched as pods fetch it.

Each `warmfleet up` is a rollout: a branch or tag is resolved to its commit once, at its start. Where the hub
does not answer, the commit of the last time is served, if its files are here.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.resources.hub import PUBLIC_HUB, is_commit
from warmfleet_contracts.resources.model_deployment import ModelDeployment
from warmfleet_contracts.resources.model_fetch import at_commit, source_key
from warmfleet_contracts.resources.model_spec import HuggingFaceSource, ModelSource
from warmfleet_runtime.files import write_file_atomically
from warmfleet_worker.model_store.fetch.command import fetch
from warmfleet_worker.model_store.fetch.errors import RefusedError
from warmfleet_worker.model_store.fetch.hub_client import HubClient, TransientError, retried
from warmfleet_worker.model_store.fetch.progress import Progress
from warmfleet_worker.model_store.fetch.settings import ENDPOINT_VARIABLE, TOKEN_VARIABLE, FetchSettings
from warmfleet_worker.model_store.fetch.store import ModelStore

FETCH_SECONDS: Final = 24 * 3600.0
"""For all files; Ctrl-C ends a fetch before, and the next one goes on where it stopped."""
MOST_RESOLVED: Final = 1000
_RESOLVED_NAME: Final = "resolved.json"


def ensure_hub_model(
    deployment: ModelDeployment, home: Path, console: Console, environment: Mapping[str, str] = os.environ
) -> Path:
    """The folder of the deployment's model; what is missing is fetched, and progress is printed.

    Raises:
        CliError: the hub refuses: no such repository or revision, or no access.
        ModelError: it could not be fetched.
    """
    source = deployment.spec.model.source
    hub = source.hugging_face
    assert hub is not None
    folder = home / "hub"
    endpoint = _endpoint(environment)
    token = environment.get(TOKEN_VARIABLE, "").strip()
    progress = Progress(FETCH_SECONDS, on_stage=lambda stage, **of: console.print(_line(hub, stage, of)))
    try:
        commit = hub.asked_revision
        if not is_commit(commit):
            commit = _Resolved(folder).commit(hub, endpoint, token, progress, source)
            console.print(f"model {hub.repository}: {hub.asked_revision} is {commit}")
        into = folder / source_key(at_commit(source, commit))
        if ModelStore(into).manifest() is None:
            settings = FetchSettings(
                into=into,
                repository=hub.repository,
                revision=commit,
                endpoint=endpoint,
                token=token,
                any_architecture=deployment.spec.engine.type == "VLLM",
                timeout_seconds=FETCH_SECONDS,
            )
            fetch(settings, progress)
    except RefusedError as error:
        raise CliError(
            str(error), advice=f"on this machine the token is ${TOKEN_VARIABLE}", exit_code=ExitCode.MODEL
        ) from error
    return into


def fetched_hub_model(
    source: ModelSource, home: Path, environment: Mapping[str, str] = os.environ
) -> Path | None:
    """The folder that `ensure_hub_model` left of a model, without asking the hub; None if there is none."""
    hub = source.hugging_face
    assert hub is not None
    folder = home / "hub"
    commit = hub.asked_revision
    if not is_commit(commit):
        commit = _Resolved(folder).last_commit(hub, _endpoint(environment))
    into = folder / source_key(at_commit(source, commit))
    return into if commit and ModelStore(into).manifest() is not None else None


def _endpoint(environment: Mapping[str, str]) -> str:
    return (environment.get(ENDPOINT_VARIABLE) or PUBLIC_HUB).rstrip("/")


class _Resolved:
    """The commits of branches and tags at the last time that the hub was asked: a file beside the folders."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / _RESOLVED_NAME

    def commit(
        self, hub: HuggingFaceSource, endpoint: str, token: str, progress: Progress, source: ModelSource
    ) -> str:
        """The branch's commit now, or that of the last time where the hub does not answer."""
        name = _resolved_name(hub, endpoint)
        known = self._read()
        last = known.get(name, "")
        here = is_commit(last) and ModelStore(self._folder / source_key(at_commit(source, last))).manifest()
        try:
            with HubClient(endpoint, hub.repository, hub.asked_revision, token) as client:
                commit = client.commit() if here else retried(client.commit, progress)
        except TransientError as error:
            if not here:
                raise
            progress.report("the commit of the last time is used", reason=str(error))
            return last
        known.pop(name, None)
        newest = dict([*known.items(), (name, commit)][-MOST_RESOLVED:])
        self._folder.mkdir(parents=True, exist_ok=True)
        write_file_atomically(self._path, msgspec.json.encode(newest))
        return commit

    def last_commit(self, hub: HuggingFaceSource, endpoint: str) -> str:
        """What the branch or tag was at the last time; empty if it was never asked for."""
        return self._read().get(_resolved_name(hub, endpoint), "")

    def _read(self) -> dict[str, str]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
        except (OSError, *UNDECODABLE):
            return {}


def _resolved_name(hub: HuggingFaceSource, endpoint: str) -> str:
    return f"{endpoint} {hub.repository}@{hub.asked_revision}"


def _line(hub: HuggingFaceSource, stage: str, figures: Mapping[str, object]) -> str:
    shown = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items())
    return f"model {hub.repository}: {stage}{f' ({shown})' if shown else ''}"
