"""`python -m warmfleet_testing.processes.impatient_worker`: it ends the sequences that others pause.

A worker whose engine has no pause does the same, after more unread tokens.
"""

import sys

from warmfleet_worker.__main__ import main
from warmfleet_worker.server import sequence_handle

if __name__ == "__main__":
    setattr(sequence_handle, "MAX_BUFFERED_TOKENS", sequence_handle.PAUSE_TOKENS)  # noqa: B010
    sys.exit(main())
