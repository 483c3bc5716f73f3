"""`python -m warmfleet_worker.parity --model FOLDER`: prints a comparison as JSON."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from warmfleet_runtime.memory import importing

with importing():
    import msgspec

    from warmfleet_contracts.errors import WarmfleetError
    from warmfleet_worker.pytorch import is_torch_installed
    from warmfleet_worker.runner.runner_settings import RunnerSettings
    from warmfleet_worker.settings import Dtype


def main(arguments: Sequence[str] | None = None) -> int:
    """0 with a report on stdout; 2 with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="warmfleet-parity", description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", choices=get_args(Dtype), default="Auto")
    given = parser.parse_args(arguments)
    if not is_torch_installed():
        sys.stderr.write("PyTorch, which computes the reference, is not installed\n")
        return 2
    with importing():
        from warmfleet_worker.parity.measurement import measure  # noqa: PLC0415 - only where there is torch
    try:
        report = measure(given.model, RunnerSettings(kv_cache_bytes=0, dtype=given.dtype))
    except WarmfleetError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
