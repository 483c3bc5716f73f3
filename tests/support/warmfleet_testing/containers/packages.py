"""`python -m warmfleet_testing.containers.packages`: installs what `make check-containers` needs.

It states what it installs, and asks first where a person can answer.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

NEEDED: Final = {
    "buildah": "buildah",
    "containerd": "containerd",
    "containernetworking-plugins": "/usr/lib/cni/ptp",
    "curl": "curl",
    "debootstrap": "debootstrap",
    "iproute2": "ip",
    "iptables": "iptables",
    "procps": "ps",
    "runc": "runc",
}
"""Package to a program of it, or a file. Other packages may bring the program: Docker has a containerd."""
_SYSTEM_FOLDERS: Final = ("/usr/sbin", "/sbin")
"""Not on every path."""


def missing_packages(present: Iterable[str]) -> list[str]:
    """Those of `NEEDED` whose program or file is not among `present`. Pure."""
    found = set(present)
    return [package for package, name in NEEDED.items() if name not in found]


def is_present(name: str) -> bool:
    """Whether the machine has a program, or a file."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS))
    return Path(name).exists() if name.startswith("/") else shutil.which(name, path=path) is not None


def main() -> None:
    if os.geteuid() != 0:
        sys.exit("error: containers need root; try: sudo -E make check-containers")
    missing = missing_packages(filter(is_present, NEEDED.values()))
    if not missing:
        return
    commands = (
        ("apt-get", "update", "--quiet"),
        # Nothing of this machine goes for it: packages of other makers may exclude these.
        ("apt-get", "install", "--yes", "--no-remove", "--no-install-recommends", *missing),
    )
    if shutil.which("apt-get") is None:
        sys.exit(f"error: missing, and there is no apt-get: {' '.join(missing)}")
    print("check-containers installs:", *missing, flush=True)  # noqa: T201 - output of a command
    if sys.stdin.isatty() and input("go on? [y/N] ").strip().lower() not in {"y", "yes"}:
        sys.exit("nothing was installed")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in commands:
        if code := subprocess.run(command, check=False, env=environment).returncode:
            sys.exit(code)


if __name__ == "__main__":
    main()
