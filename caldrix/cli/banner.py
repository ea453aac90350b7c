"""What `caldrix serve` prints once it is ready: what it serves, where, and a command to try."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from caldrix.models.loading import TextModel


def banner(
    model: TextModel,
    urls: Sequence[str],
    *,
    served_name: str,
    path: Path,
    lane: str,
    decides: bool,
    speculation: str | None,
) -> str:
    """A heading, and a line for each fact.

    ``decides`` says whether the model is a decider, and ``speculation`` how tokens are guessed
    ahead, or None where they are not.
    """
    route, request = _example(model, decides=decides)
    body = json.dumps({"model": served_name, **request})
    rows = "1 request" if model.rows == 1 else f"{model.rows} requests"
    lines = {
        "model": f"{served_name} ({path})",
        "lane": f"{lane}, {rows} at a time{_picks(model)}",
        "context": f"{model.context} tokens; {_cache(model)}",
        "address": ", ".join(f"{url}/v1" for url in urls),
        "try": f"curl {urls[0]}{route} -H 'Content-Type: application/json' -d {shlex.quote(body)}",
    }
    if speculation is not None:
        lines["guesses"] = speculation
    return "\n".join(["caldrix is ready", *(f"  {name:<8} {text}" for name, text in lines.items())])


def _example(model: TextModel, *, decides: bool) -> tuple[str, Mapping[str, object]]:
    """A path, and what to ask there of such a model."""
    if decides:
        question = {"type": "noul", "instructions": "Is the customer angry?"}
        return "/v1/systemone", {"state": "I was charged twice!", "questions": {"q": question}}
    if model.template is None:
        return "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 32}
    message = {"role": "user", "content": "What is the capital of Japan?"}
    return "/v1/chat/completions", {"messages": [message], "max_tokens": 32}


def _picks(model: TextModel) -> str:
    return "; sampled tokens are picked on the device" if model.picks else ""


def _cache(model: TextModel) -> str:
    """What the rows' keys and values take in memory: no request makes it more."""
    rows = "1 row" if model.rows == 1 else f"{model.rows} rows"
    if model.prefix_rows:
        rows += f" and {model.prefix_rows} for shared prefixes"
    if model.snapshots:
        rows += " and as much for what questions share"
    return f"{rows}, {model.cache_bytes / 2**20:.0f} MiB when full"
