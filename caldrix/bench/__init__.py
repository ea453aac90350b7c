"""Measuring: how fast a model computes on a lane, and how fast the machine reads its memory."""
