"""``python -m caldrix`` is the command ``caldrix``."""

from caldrix.cli.main import main

main()
