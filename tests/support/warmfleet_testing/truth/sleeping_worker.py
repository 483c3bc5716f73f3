"""`python -m warmfleet_testing.truth.sleeping_worker`: a worker whose engine process is `sleeping_engine`."""

import sys

from warmfleet_worker.__main__ import main

if __name__ == "__main__":
    sys.exit(main(engine_module="warmfleet_testing.truth.sleeping_engine"))
