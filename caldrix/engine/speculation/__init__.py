"""Guessing a sequence's next tokens, so that one pass over the weights verifies several."""
