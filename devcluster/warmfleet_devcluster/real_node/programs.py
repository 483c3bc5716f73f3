"""The programs of a real node that the system's packages bring."""

import shutil
from typing import Final

from warmfleet_devcluster.errors import StartFailedError
from warmfleet_devcluster.real_node.configuration import CNI_PLUGINS

_ON_PATH: Final = {
    "containerd": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "unshare": "util-linux",
}
"""Program to Debian package."""
_PLUGINS: Final = ("ptp", "host-local", "loopback")
_PLUGINS_PACKAGE: Final = "containernetworking-plugins"


def check_programs() -> None:
    """Raise StartFailedError, which names the packages, if a program is missing."""
    missing = {program: package for program, package in _ON_PATH.items() if shutil.which(program) is None}
    missing |= {name: _PLUGINS_PACKAGE for name in _PLUGINS if not (CNI_PLUGINS / name).is_file()}
    if missing:
        packages = " ".join(sorted(set(missing.values())))
        raise StartFailedError(
            f"a real node needs {', '.join(missing)}",
            advice=f"on Debian: apt-get install --no-install-recommends {packages}",
        )
