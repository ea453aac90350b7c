"""`caldrix pull`: fetch a model, so that it can be served without the network."""

from __future__ import annotations

from caldrix.cli.progress import TerminalProgress
from caldrix.cli.termination import ended_by_sigterm
from caldrix.weights.names import pull as pull_model


def pull(model: str, /, *, update: bool = False) -> int:
    """Fetch a model into the cache and print where it is.

    What is there already is checked first, and fetched again where it is damaged.

    Parameters
    ----------
    model
        An alias, a hub name (owner/name[@revision]) or an Ollama name (ollama:name[:tag]).
    update
        Ask the model's source for a newer version even if it is in the cache.
    """
    with ended_by_sigterm(), TerminalProgress() as progress:
        resolved = pull_model(model, progress, update=update)
    print(resolved.path)
    return 0
