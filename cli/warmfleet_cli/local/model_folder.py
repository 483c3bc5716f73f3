"""Finds the files of a model that are on this machine: by folder, by catalog name, or by a manifest."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.local.hub_model import fetched_hub_model
from warmfleet_contracts.resources.manifests import load_manifest
from warmfleet_contracts.resources.model_deployment import ModelDeployment
from warmfleet_contracts.resources.model_spec import LocalPathSource
from warmfleet_worker.model_store.catalog import CATALOG, catalog_model_path

_MANIFEST_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model on this machine."""

    path: Path
    """A folder with `config.json`."""
    deployment: ModelDeployment | None
    """The manifest that named it."""


def find_model(model: str, home: Path) -> FoundModel:
    """The model that a user names on the command line; fetches nothing.

    Args:
        model: a model folder, a name of the catalog, or a ModelDeployment manifest.
        home: where models were fetched to.

    Raises:
        CliError: there is no such model here; the advice has how to get it.
        ManifestError: the manifest is wrong.
    """
    if model in CATALOG:
        return FoundModel(_catalog_folder(model, home), None)
    path = Path(model).expanduser()
    if path.is_dir():
        return FoundModel(_with_configuration(path, repr(model)), None)
    if path.suffix in _MANIFEST_SUFFIXES:
        deployment = load_manifest(path, local=True)
        return FoundModel(_folder_of(deployment, model, home), deployment)
    raise CliError(
        f"{model!r} is neither in the catalog nor a model folder nor a manifest",
        advice="`warmfleet model list` shows the catalog",
        exit_code=ExitCode.MODEL,
    )


def local_path_folder(source: LocalPathSource) -> Path:
    """The folder of `spec.model.source.localPath`.

    Raises:
        CliError: it is no model folder.
    """
    path = Path(source.path).expanduser().resolve()
    return _with_configuration(path, f"spec.model.source.localPath: {path}")


def _folder_of(deployment: ModelDeployment, origin: str, home: Path) -> Path:
    source = deployment.spec.model.source
    if source.catalog is not None:
        return _catalog_folder(source.catalog.name, home)
    if source.local_path is not None:
        return local_path_folder(source.local_path)
    if source.hugging_face is None:
        raise CliError(
            f"{origin}: its model is in a cluster's image or volume",
            advice="give the folder of the model's files instead of the manifest",
            exit_code=ExitCode.MODEL,
        )
    path = fetched_hub_model(source, home)
    if path is None:
        hub = source.hugging_face
        raise CliError(
            f"{hub.repository}@{hub.asked_revision} is not on this machine",
            advice=f"`warmfleet up -f {origin}` fetches it",
            exit_code=ExitCode.MODEL,
        )
    return path


def _catalog_folder(name: str, home: Path) -> Path:
    path = catalog_model_path(name, home)
    if path is None:
        raise CliError(
            f"{name} is not on this machine",
            advice=f"`warmfleet model pull {name}` fetches it",
            exit_code=ExitCode.MODEL,
        )
    return path


def _with_configuration(path: Path, named: str) -> Path:
    if (path / "config.json").is_file():
        return path
    raise CliError(
        f"{named} holds no config.json",
        advice="give a model folder in Hugging Face layout",
        exit_code=ExitCode.MODEL,
    )
