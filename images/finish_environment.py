"""Complete an image's environment after its dependencies were installed: `finish_environment.py CODE`.

Runs by the environment's own interpreter while an image is built: standard library only. Removes what nothing
imports, has the environment find warmfleet's modules in the folder CODE, which is a layer of its own, and
compiles the rest, since nothing can be written at run time.
"""

import compileall
import re
import sys
import sysconfig
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Final

# Classes per resource and per API group, generated from Kubernetes' OpenAPI document and imported when one is
# asked for: 75 MB, and as much again compiled. The client is our own; of the package it uses `config`.
GENERATED: Final = tuple(
    f"kubernetes/{client}/{folder}" for client in ("client", "aio/client") for folder in ("api", "models")
)
# Modules named after a newer Python, such as torch's py312_intrinsics, do not compile with an older one.
_OTHER_PYTHON: Final = re.compile(r"/py3[0-9]+_")


def remove_generated(site_packages: Path) -> int:
    """Remove the generated classes of the `kubernetes` package, if it is installed; returns the bytes.

    Raises:
        FileNotFoundError: this version of the package keeps them elsewhere.
    """
    if not (site_packages / "kubernetes").is_dir():
        return 0
    removed = 0
    for folder in GENERATED:
        modules = [path for path in (site_packages / folder).glob("*.py") if path.name != "__init__.py"]
        if not modules:
            raise FileNotFoundError(f"kubernetes: {folder} holds no generated modules")
        for path in modules:
            removed += path.stat().st_size
            path.unlink()
    return removed


def finish(site_packages: Path, code: str) -> None:
    """Raises OSError, or SystemExit if a module does not compile."""
    removed = remove_generated(site_packages)
    print(f"removed {removed / 1e6:.0f} MB of generated classes")
    (site_packages / "warmfleet.pth").write_text(f"{code}\n", encoding="utf-8")
    compiled = compileall.compile_dir(
        site_packages,
        quiet=1,
        rx=_OTHER_PYTHON,
        workers=0,
        invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
    )
    if not compiled:
        sys.exit("error: not every module compiles with this Python")


if __name__ == "__main__":
    finish(Path(sysconfig.get_path("purelib")), sys.argv[1])
