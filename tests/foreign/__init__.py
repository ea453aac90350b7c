"""Servers that this project did not write, judged by its conformance suite."""
