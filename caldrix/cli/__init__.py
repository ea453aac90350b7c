"""The command line: one module a command, assembled in main.py."""
