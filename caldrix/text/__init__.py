"""Text in and out of tokens: sans-IO state machines."""
