"""``just jevcompat``: see `tests.jevcompat.command`."""

from __future__ import annotations

import signal
import sys

from tests.jevcompat.command import app

if __name__ == "__main__":
    # As Ctrl-C does, so that the server is ended with the block.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(app(sys.argv[1:]))
