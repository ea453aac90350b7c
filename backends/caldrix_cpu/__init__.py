"""The cpu lane: numpy, the reference for every faster kernel."""
