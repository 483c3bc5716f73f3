"""Paths of this machine inside a container, beside its volumes: the image's programs, accelerator devices."""

import os
from pathlib import Path
from typing import Any

from warmfleet_devcluster.node.host.images import Image

Json = dict[str, Any]


def reachable_paths(image: Image) -> list[str]:
    """Paths that the image's program needs, with the targets of links."""
    named = [
        *image.paths,
        *image.env.get("PATH", "").split(":"),
        *image.env.get("PYTHONPATH", "").split(":"),
        *image.entrypoint[:1],
    ]
    absolute = [path for path in named if path.startswith("/")]
    for folder in image.env.get("PATH", "").split(":"):
        program = os.path.join(folder, image.entrypoint[0]) if image.entrypoint else ""  # noqa: PTH118
        if program.startswith("/") and os.path.exists(program):  # noqa: PTH110
            absolute.append(program)
    return list(dict.fromkeys([*absolute, *(os.path.realpath(path) for path in absolute)]))


def accelerator_devices(container: Json) -> list[str]:
    """Accelerator devices of this machine, for a container that asks for one and a machine that has one."""
    limits = container.get("resources", {}).get("limits", {})
    if not any(name.startswith("nvidia.com/") for name in limits):
        return []
    return [path.name for path in Path("/dev").glob("nvidia*") if not path.is_dir()]
