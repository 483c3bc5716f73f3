"""What all tests have in common."""

import os
from pathlib import Path

# The processes that tests start find `warmfleet_testing` as the tests themselves do.
_SUPPORT = str(Path(__file__).parent / "support")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_SUPPORT, os.environ.get("PYTHONPATH"))))
