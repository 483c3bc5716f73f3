"""The images of a devcluster: references that stand for the running installation. Pure."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from warmfleet_contracts.names import IMAGE_HOME_VARIABLE

REGISTRY: Final = "registry.devcluster.local/warmfleet"
"""No such host exists, so a reference that is not on the list cannot be pulled."""
IMAGE_USER: Final = 65532

_REPOSITORIES: Final = {
    "operator": ("warmfleet-operator", "warmfleet_operator"),
    "router": ("warmfleet-router", "warmfleet_router"),
    "workerCpu": ("warmfleet-worker-cpu", "warmfleet_worker"),
    "workerCuda": ("warmfleet-worker-cuda", "warmfleet_worker"),
    "workerVllm": ("warmfleet-worker-vllm", "warmfleet_worker"),
}
"""The chart's value to repository and Python package."""

_PASSED_ON: Final = ("PYTHONPATH", "OMP_NUM_THREADS", "LANG", "LC_ALL")
"""Variables of this process that configure Python, and that containers inherit."""


def image_list(
    version: str, home: Path, environment: Mapping[str, str] = os.environ
) -> dict[str, dict[str, Any]]:
    """What each reference runs: the interpreter that runs us, with what `home` holds for workers."""
    passed_on = {name: environment[name] for name in _PASSED_ON if name in environment}
    variables = {
        # The venv's own programs first: pods call `python`.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]),
        "PYTHONDONTWRITEBYTECODE": "1",
        IMAGE_HOME_VARIABLE: str(home),
        **passed_on,
    }
    return {
        f"{REGISTRY}/{repository}:{version}": {
            "entrypoint": [sys.executable, "-m", package],
            "env": variables,
            "user": str(IMAGE_USER),
            # Links are followed, and a home may hold its models by one.
            "paths": [str(home), str(home / "models")],
        }
        for repository, package in _REPOSITORIES.values()
    }


def image_values(version: str) -> dict[str, Any]:
    """The chart's values that name these images: what `helm install -f` takes."""
    return {
        "images": {
            "registry": REGISTRY,
            **{
                value: {"repository": repository, "tag": version, "digest": ""}
                for value, (repository, _) in _REPOSITORIES.items()
            },
        }
    }
