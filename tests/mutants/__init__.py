"""Servers that are wrong on purpose, to prove that the suite can tell."""
