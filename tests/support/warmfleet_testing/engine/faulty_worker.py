"""`python -m warmfleet_testing.engine.faulty_worker`: a worker whose engine process is `faulty_engine`."""

import sys

from warmfleet_worker.__main__ import main
from warmfleet_worker.engine_program import EngineProgram

if __name__ == "__main__":
    sys.exit(main(program=EngineProgram("warmfleet_testing.engine.faulty_engine")))
