"""The manifest of a model folder for an engine that starts: at once where it was verified before."""

import os
from pathlib import Path

from warmfleet_runtime.home import warmfleet_home
from warmfleet_worker.model_store.manifest import ModelManifest
from warmfleet_worker.model_store.verification import (
    BackgroundVerification,
    prepare_records,
    recorded_manifest,
    verify_and_record,
)


def known_model(model_path: Path, records: Path) -> tuple[ModelManifest, BackgroundVerification | None]:
    """The model's manifest, and the verification of its content, to be started; None if it is done already.

    Raises:
        ModelError: the files are missing or damaged.
    """
    manifest = recorded_manifest(model_path, records) if prepare_records(records) else None
    if manifest is not None:
        return manifest, BackgroundVerification(model_path, manifest, records)
    return verify_and_record(model_path, records), None


def records_folder() -> Path:
    """Folder of the records of verified models; without a home directory none can be written."""
    try:
        return warmfleet_home() / "verified"
    except RuntimeError:
        return Path(os.devnull) / "verified"
