"""Weights as the compiled kernels read them: tiles of 16 output rows."""
