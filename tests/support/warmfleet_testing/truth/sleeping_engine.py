"""`python -m warmfleet_testing.truth.sleeping_engine`: the engine process with a `SleepingRunner` in it."""

import os
import sys

import warmfleet_worker.runner.runner
from warmfleet_testing.truth.sleeping_runner import STEP_TIMES_VARIABLE, sleeping
from warmfleet_worker.engine_process import main

if __name__ == "__main__":
    # The engine looks the loader up when it loads; everything else of it is as it ships.
    load = sleeping(warmfleet_worker.runner.runner.load_runner, os.environ[STEP_TIMES_VARIABLE])
    setattr(warmfleet_worker.runner.runner, "load_runner", load)  # noqa: B010
    sys.exit(main())
