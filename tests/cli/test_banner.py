"""What `caldrix serve` prints once it is ready; the command to try is one that is answered."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from attrs import evolve

from caldrix.cli.banner import banner
from caldrix.decisions.decider import Decider
from caldrix.decisions.decider_config import DeciderConfig
from caldrix.models.builder import ProgramBuilder
from caldrix.models.loading import TextModel
from caldrix.text.template import ChatTemplate
from tests.support import miniature
from tests.support.draws import PicksTokens
from tests.support.readable import TOKENIZER, ReadableExecutor
from tests.support.scripted import endless
from tests.support.serving import MODEL, serving, trio_test

CONTEXT = 1024


def model(template: str | None) -> TextModel:
    b = ProgramBuilder("none", vocab_size=TOKENIZER.vocab_size, max_context=CONTEXT)
    return TextModel(
        tokenizer=TOKENIZER,
        template=None if template is None else ChatTemplate(template, "", miniature.END),
        program=b.logits(b.select(b.embed("embedding", 1)), "embedding"),
        executor=ReadableExecutor(),
        context=CONTEXT,
        rows=1,
    )


def printed(
    about: TextModel, *urls: str, decides: bool = False, speculation: str | None = None
) -> dict[str, str]:
    """The text of each line by its name."""
    heading, *lines = banner(
        about,
        urls,
        served_name=MODEL,
        path=Path("m.gguf"),
        lane="cpu",
        decides=decides,
        speculation=speculation,
    ).splitlines()
    assert heading == "caldrix is ready"
    return {line[2:10].rstrip(): line[11:] for line in lines}


# The template, whether it is a decider, and what the command asks
KINDS: list[tuple[str | None, bool, str]] = [
    (miniature.CHATML, False, "/v1/chat/completions"),
    (None, False, "/v1/completions"),
    (None, True, "/v1/systemone"),
    (miniature.CHATML, True, "/v1/systemone"),
]


@pytest.mark.parametrize(("template", "decides", "route"), KINDS)
@trio_test
async def test_the_command_to_try_is_answered(
    template: str | None, decides: bool, route: str
) -> None:
    about = model(template)
    decider = Decider.of(DeciderConfig(temperature=1.0), TOKENIZER, TOKENIZER.vocab_size)
    async with serving(
        about.executor,
        template=template,
        context=CONTEXT,
        tokenizer=TOKENIZER,
        decider=decider if decides else None,
    ) as server:
        command = shlex.split(printed(about, server.url, decides=decides)["try"])
        curl, url, _, header, _, body = command
        assert (curl, url) == ("curl", server.url + route)
        name, value = header.split(": ")
        answer = await server.client.post(url, content=body, headers={name: value})
    assert answer.status_code == 200, answer.text
    asked = json.loads(body)
    assert asked["model"] == MODEL
    if decides:
        assert set(answer.json()["answers"]) == set(asked["questions"])


def test_every_fact_has_a_line() -> None:
    one = model(None)
    lines = printed(one, "http://h:1", "http://i:1")
    assert lines["model"] == "tiny/model (m.gguf)"
    assert lines["lane"] == "cpu, 1 request at a time"
    assert lines["address"] == "http://h:1/v1, http://i:1/v1"
    assert lines["context"].startswith("1024 tokens; 1 row, ")
    assert "guesses" not in lines
    several = printed(
        evolve(one, rows=2, prefix_rows=3, snapshots=1), "http://h:1", speculation="by n-grams"
    )
    assert several["lane"] == "cpu, 2 requests at a time"
    assert several["context"].startswith(
        "1024 tokens; 2 rows and 3 for shared prefixes and as much for what questions share, "
    )
    assert several["guesses"] == "by n-grams"
    picking = evolve(one, rows=2, executor=PicksTokens(endless(7), TOKENIZER.vocab_size))
    assert printed(picking, "http://h:1")["lane"] == (
        "cpu, 2 requests at a time; sampled tokens are picked on the device"
    )
