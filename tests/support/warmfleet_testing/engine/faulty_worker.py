"""`python -m warmfleet_testing.engine.faulty_worker`: a worker whose engine process is `faulty_engine`."""

import sys

from warmfleet_worker.__main__ import main

if __name__ == "__main__":
    sys.exit(main(engine_module="warmfleet_testing.engine.faulty_engine"))
