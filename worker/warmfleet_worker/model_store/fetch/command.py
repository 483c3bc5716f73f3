"""`python -m warmfleet_worker.fetch`; exit codes are `contracts.resources.fetch_outcome.FetchExitCode`."""

import errno
import signal
import sys
import types
from collections.abc import Sequence
from typing import Final, NoReturn

import structlog

from warmfleet_contracts.errors import ModelError
from warmfleet_contracts.resources.fetch_outcome import FetchExitCode, done_message
from warmfleet_runtime.logs import configure_logs
from warmfleet_worker.model_store.fetch.catalog import fetch_catalog_model
from warmfleet_worker.model_store.fetch.errors import FetchError
from warmfleet_worker.model_store.fetch.hub import fetch_hub_model
from warmfleet_worker.model_store.fetch.progress import Progress
from warmfleet_worker.model_store.fetch.settings import FetchSettings, parse_settings
from warmfleet_worker.model_store.fetch.store import ModelStore
from warmfleet_worker.model_store.manifest import ModelManifest
from warmfleet_worker.termination_message import write_termination_message

_WAIT_POLL_SECONDS: Final = 1.0

log = structlog.get_logger("warmfleet.fetch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch; the log and the pod's termination message get the result. Returns the exit code."""
    settings = parse_settings(arguments)
    configure_logs(model=settings.source)
    signal.signal(signal.SIGTERM, _on_sigterm)  # process 1 of a container has no default for it
    code, text = attempt(settings)
    write_termination_message(settings.termination_message, text)
    return int(code)


def attempt(settings: FetchSettings) -> tuple[FetchExitCode, str]:
    """Fetch; returns the exit code and the termination message: `done_message`, or the error."""
    try:
        manifest = fetch(settings)
    except (ModelError, OSError) as error:
        code = _exit_code(error)
        log.error("the model was not fetched", reason=str(error), exit_code=int(code))  # noqa: TRY400
        return code, f"{settings.source}: {error}"
    log.info(
        "the model is there",
        folder=str(settings.into),
        bytes=manifest.total_bytes,
        digest=manifest.model_digest,
    )
    return FetchExitCode.DONE, done_message(manifest.model_digest, manifest.total_bytes)


def fetch(settings: FetchSettings, progress: Progress | None = None) -> ModelManifest:
    """Fetch the model to `settings.into` unless it is there; returns its manifest.

    Args:
        settings: what to fetch, and where to.
        progress: who is shown it, and its deadline; by default the log, and that of `settings`.

    Raises:
        ModelError: it could not be fetched.
        OSError: the folder cannot be read or written.
    """
    store, progress = ModelStore(settings.into), progress or Progress(settings.timeout_seconds)
    if settings.wait:
        while (manifest := store.manifest()) is None:
            progress.report("waiting for the Job that fetches the model")
            progress.sleep(_WAIT_POLL_SECONDS)
        return manifest
    with store.locked(progress):
        if store.manifest() is None:
            if settings.catalog:
                fetch_catalog_model(settings, store, progress)
            else:
                fetch_hub_model(settings, store, progress)
    manifest = store.manifest()
    if manifest is None:
        raise FetchError("what was fetched is not whole")
    return manifest


def _exit_code(error: ModelError | OSError) -> FetchExitCode:
    if isinstance(error, FetchError):
        return error.exit_code
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return FetchExitCode.NO_SPACE
    return FetchExitCode.FAILED


def _on_sigterm(number: int, frame: types.FrameType | None) -> NoReturn:
    del frame
    sys.exit(128 + number)
