"""The real catalog model, which `make check` pulls before it runs the tests."""

from functools import cache
from pathlib import Path
from typing import Final

import pytest

from warmfleet_runtime.home import warmfleet_home
from warmfleet_worker.model_store.catalog import catalog_model_path

CATALOG_MODEL_NAME: Final = "smollm2-135m-instruct"


@cache
def pulled_catalog_model() -> Path:
    """Folder of the pulled model under `$WARMFLEET_HOME`; a missing one fails the test, never skips it."""
    path = catalog_model_path(CATALOG_MODEL_NAME, warmfleet_home())
    if path is None:
        pytest.fail(
            f"the catalog model is not under {warmfleet_home()}; "
            f"run: warmfleet model pull {CATALOG_MODEL_NAME}",
            pytrace=False,
        )
    return path
