"""Put a model of the catalog into an image: `bake_model.py HOME NAME`; an empty NAME makes an empty home.

Runs while an image is built. HOME becomes a warmfleet home that every user can read.
"""

import sys
from pathlib import Path


def bake(home: Path, name: str) -> None:
    """Fetch and convert `name` below `home`.

    Raises:
        ModelError: the catalog has no such model, or it cannot be fetched.
    """
    home.mkdir(parents=True, exist_ok=True)
    if name:
        from warmfleet_worker.model_store.catalog import pull_model  # noqa: PLC0415 - needs numpy, an empty home does not

        pull_model(name, home, lambda progress: print(progress.stage, flush=True))
    for path in [home, *home.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


if __name__ == "__main__":
    bake(Path(sys.argv[1]), sys.argv[2])
