"""A local inference server whose documentation is executable."""
