"""Checkpoints: file formats, names, downloads and the cache."""
