"""`python -m warmfleet_testing.engine.faulty_engine`: the engine process with a `FaultyRunner` in it."""

import sys

import warmfleet_worker.runner.runner
from warmfleet_testing.engine.faulty_runner import faulty
from warmfleet_worker.engine_process import main

if __name__ == "__main__":
    # The engine looks the loader up when it loads; everything else of it is as it ships.
    setattr(warmfleet_worker.runner.runner, "load_runner", faulty(warmfleet_worker.runner.runner.load_runner))  # noqa: B010
    sys.exit(main())
