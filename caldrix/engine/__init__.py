"""The engine: admission, scheduling, sampling. It knows nothing of HTTP."""
