"""Between which numbers of workers a local fleet scales: by its manifest, its memory and its cores. Pure."""

from contextlib import suppress
from pathlib import Path
from typing import Final

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.local.plan import MAX_LOCAL_WORKERS, LocalScaling
from warmfleet_contracts.errors import ManifestError, ModelError
from warmfleet_contracts.resources.autoscaling_spec import AutoscalingSpec
from warmfleet_contracts.resources.engine_memory import ModelSize
from warmfleet_contracts.resources.model_deployment import ModelDeployment
from warmfleet_contracts.resources.worker_memory import worker_memory_bytes
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.model.shapes import model_size

DEFAULT_MAX_WORKERS: Final = 8
"""Without `spec.autoscaling`, and half the cores if that is less: two threads for each worker."""


def local_bounds(
    deployment: ModelDeployment, *, origin: str, cores: int, available_bytes: int | None
) -> tuple[LocalScaling, str]:
    """How a fleet scales itself on this machine, and what of its manifest this machine cannot do, or "".

    Args:
        deployment: accepted by `require_local_support`.
        origin: its manifest, for errors.
        cores: CPU cores that workers share.
        available_bytes: memory that workers can have together; None: not known, and no bound.

    Raises:
        ManifestError: `spec.autoscaling` cannot be acted on here.
        CliError: memory has no room for `minReplicas`, or for one worker.
    """
    given = deployment.spec.autoscaling
    if given is not None and given.mode != "Active":
        raise ManifestError(
            f"{origin}: spec.autoscaling.mode: is {given.mode}, and --autoscale acts; set Active, "
            "or leave --autoscale out: `warmfleet top` shows the wanted number"
        )
    # Of a fleet that may sleep, one: a request must be able to wake it.
    lowest = max(1, given.min_replicas) if given is not None else 1
    highest = given.max_replicas if given is not None else max(2, min(DEFAULT_MAX_WORKERS, cores // 2))
    worker_bytes = worker_memory_bytes(deployment.spec, _model_size(deployment))
    room = MAX_LOCAL_WORKERS if available_bytes is None else available_bytes // worker_bytes
    if room < lowest:
        raise CliError(
            f"{_counted(lowest)} of up to {gib(worker_bytes)} need more than the {gib(available_bytes or 0)} "
            "of memory that are available",
            advice="lower spec.kvCache.size or spec.autoscaling.minReplicas",
            exit_code=ExitCode.START_FAILED,
        )
    most = min(highest, room, MAX_LOCAL_WORKERS)
    notice = ""
    if given is not None and most < highest:
        why = (
            f"memory has room for {_counted(most)} of up to {gib(worker_bytes)}"
            if most < MAX_LOCAL_WORKERS
            else f"a local fleet has at most {_counted(most)}"
        )
        notice = f"spec.autoscaling.maxReplicas: {highest} becomes {most}, as {why}"
    spec = given or AutoscalingSpec.model_validate({"maxReplicas": most})
    return LocalScaling(spec.model_copy(update={"max_replicas": most}), worker_bytes), notice


def no_room(worker_bytes: int, available_bytes: int | None, *, starting: int) -> str:
    """Why memory has no room for a further worker; empty if it has.

    Args:
        worker_bytes: memory of one worker, at most.
        available_bytes: memory that new processes can have; None: not known, and no bound.
        starting: workers that have yet to take theirs.
    """
    needed = (1 + starting) * worker_bytes
    if available_bytes is None or available_bytes >= needed:
        return ""
    others = f", {starting} that start included," if starting else ""
    return f"a further worker{others} needs up to {gib(needed)} of memory, and {gib(available_bytes)} is free"


def gib(size_bytes: int) -> str:
    """`1.5 GiB`."""
    return f"{size_bytes / 2**30:.1f} GiB"


def _counted(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def _model_size(deployment: ModelDeployment) -> ModelSize | None:
    """Of a model in a folder; None for one of the catalog, whose size is known without.

    A folder without a configuration is refused when the fleet starts, in better words.
    """
    local = deployment.spec.model.source.local_path
    if local is None:
        return None
    with suppress(ModelError):
        return model_size(load_model_config(Path(local.path).expanduser()))
    return None
