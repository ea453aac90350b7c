"""`caldrix run` on a scripted model, to be run as a process of its own and sent signals.

python -m tests.support.scripted_run FLAG... : the command's own flags.
"""

from __future__ import annotations

import sys
from unittest import mock

from cyclopts import App

from caldrix.cli.run import run
from tests.support.scripted_process import scripted_model

if __name__ == "__main__":
    with mock.patch("caldrix.cli.opening.load_model", scripted_model):
        sys.exit(App(default_command=run)(result_action="return_value"))
