"""Where warmfleet keeps what outlives a process: models, tokenizers, the state of local fleets."""

import os
from collections.abc import Mapping
from pathlib import Path

from warmfleet_contracts.names import HOME_VARIABLE


def warmfleet_home(environment: Mapping[str, str] = os.environ) -> Path:
    """`$WARMFLEET_HOME`, by default `~/.cache/warmfleet`."""
    configured = environment.get(HOME_VARIABLE, "")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "warmfleet"
