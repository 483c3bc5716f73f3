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
    "buildah": "/usr/bin/buildah",
    "containerd": "/usr/bin/containerd",
    "containernetworking-plugins": "/usr/lib/cni/ptp",
    "debootstrap": "/usr/sbin/debootstrap",
    "iptables": "/usr/sbin/iptables",
    "runc": "/usr/sbin/runc",
}
"""Package to a file of it."""


def missing_packages(present: Iterable[str]) -> list[str]:
    """Those of `NEEDED` of whose files none is among `present`. Pure."""
    files = set(present)
    return [package for package, file in NEEDED.items() if file not in files]


def main() -> None:
    if os.geteuid() != 0:
        sys.exit("error: containers need root; try: sudo -E make check-containers")
    missing = missing_packages(file for file in NEEDED.values() if Path(file).exists())
    if not missing:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    if shutil.which("apt-get") is None:
        sys.exit(f"error: missing, and there is no apt-get: {' '.join(missing)}")
    print("check-containers installs:", *missing, flush=True)  # noqa: T201 - output of a command
    if sys.stdin.isatty() and input("go on? [y/N] ").strip().lower() not in {"y", "yes"}:
        sys.exit("nothing was installed")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    sys.exit(subprocess.run(command, check=False, env=environment).returncode)


if __name__ == "__main__":
    main()
