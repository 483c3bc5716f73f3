"""Fetches a model of the Hugging Face hub into the store: small files first, then weights."""

import shutil
from collections.abc import Iterable
from typing import Final

from warmfleet_contracts.errors import ModelError
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.model_store.fetch.download import PARTIAL_SUFFIX, download_file
from warmfleet_worker.model_store.fetch.errors import RefusedError
from warmfleet_worker.model_store.fetch.hub_client import HubClient, retried
from warmfleet_worker.model_store.fetch.progress import Progress
from warmfleet_worker.model_store.fetch.selection import WEIGHTS_INDEX, HubFile, small_files, weight_files
from warmfleet_worker.model_store.fetch.settings import FetchSettings
from warmfleet_worker.model_store.fetch.store import ModelStore

_MARGIN_BYTES: Final = 16 * 2**20
"""For the manifest, folders and the file system itself."""


def fetch_hub_model(settings: FetchSettings, store: ModelStore, progress: Progress) -> None:
    """Publish the model; the caller holds the store's lock.

    Raises:
        RefusedError: no access, no such commit, no model that the engine reads, or offline.
        NoSpaceError: it does not fit.
        ModelError: the hub could not be reached, or its files differ from its listing.
    """
    if settings.offline:
        raise RefusedError("it is not cached, and fetching is switched off (offline)")
    with HubClient(settings.endpoint, settings.repository, settings.revision, settings.token) as client:
        progress.report("asking the hub", endpoint=settings.endpoint)
        listing = retried(client.listing, progress)
        small = small_files(listing)
        store.work.mkdir(parents=True, exist_ok=True)
        store.require_space(_missing_bytes(small, store) + _MARGIN_BYTES)
        for file in small:
            download_file(client, file, store.work, progress)
        if not settings.any_architecture:
            _require_known_model(store)
        index = store.work / WEIGHTS_INDEX
        weights = weight_files(listing, index.read_bytes() if index.is_file() else None)
        store.require_space(_missing_bytes(weights, store) + _MARGIN_BYTES)
        for file in weights:
            download_file(client, file, store.work, progress)
    _keep_only({file.name for file in (*small, *weights)}, store)
    progress.report("describing", folder=str(store.into))
    store.publish(settings.source)


def _require_known_model(store: ModelStore) -> None:
    """Refuse an unsupported architecture before gigabytes of weights."""
    try:
        load_model_config(store.work)
    except ModelError as error:
        raise RefusedError(str(error)) from error


def _missing_bytes(files: Iterable[HubFile], store: ModelStore) -> int:
    missing = 0
    for file in files:
        path, partial = store.work / file.name, store.work / f"{file.name}{PARTIAL_SUFFIX}"
        present = next((place.stat().st_size for place in (path, partial) if place.is_file()), 0)
        missing += max(0, file.size_bytes - present)
    return missing


def _keep_only(names: set[str], store: ModelStore) -> None:
    for path in store.work.iterdir():
        if path.name not in names:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
