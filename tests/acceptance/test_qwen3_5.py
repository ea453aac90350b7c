"""Chat and completions by a model with states, on either kind of kernels.

Its weights are random and its tokens bytes, so what it must say is computed here, by the lane
itself. A server that goes on from a state it should not have would say something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import openai
import pytest

from caldrix.models.lane import Slice, find_lane
from caldrix.models.loading import load_model
from caldrix_cpu.lane import KERNELS_VARIABLE
from tests.acceptance.conftest import caldrix_serve
from tests.soak.model import write_model
from tests.support import miniature
from tests.support.compiled import BEST

CONTEXT = 512
STATE = "Tickets are sorted by team: billing, hardware, accounts. " * 3
QUESTIONS = ("My card was charged twice.", "The screen stays black.", "")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("qwen3_5") / "model", "qwen3_5")


@pytest.fixture(params=["numpy", BEST.name])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    monkeypatch.setenv(KERNELS_VARIABLE, name)
    return name


@pytest.fixture
def url(kernels: str, checkpoint: Path) -> Iterator[str]:
    with caldrix_serve(str(checkpoint), "--context", str(CONTEXT), "--threads", "1") as address:
        yield address


def greedy(checkpoint: Path, prompt: str, most: int) -> str:
    """The answer to a prompt that nothing came before, cut into slices as the engine does."""
    with load_model(checkpoint, lane=find_lane("cpu"), context=CONTEXT, threads=1) as model:
        (end,) = model.tokenizer.encode(miniature.END)
        ids = model.tokenizer.encode(prompt)
        answer: list[int] = []
        start, pending = 0, ids
        while len(answer) < most:
            part = np.array(pending[:128], np.int64)
            logits = model.executor.step([Slice(0, start, part, wanted=1)])
            start, pending = start + len(part), pending[128:]
            if not pending:
                pending = [int(logits[-1].argmax())]
                if pending == [end]:
                    break
                answer += pending
        return model.tokenizer.decode(answer)


def test_answers_are_the_models_own(url: str, kernels: str, checkpoint: Path) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none needed", max_retries=0)
    (served,) = client.models.list()

    def complete(prompt: str, count: int) -> str:
        answer = client.completions.create(
            model=served.id, prompt=prompt, max_tokens=count, temperature=0
        )
        return answer.choices[0].text

    for question in QUESTIONS:
        # The last token that is said is never computed: the row then holds the state alone.
        assert complete(STATE, 1) == greedy(checkpoint, STATE, 1)
        assert complete(STATE + question, 12) == greedy(checkpoint, STATE + question, 12)
    records = httpx2.get(f"{url}/debug/requests").raise_for_status().json()
    cached = [record["cached_tokens"] for record in reversed(records["requests"])]
    length = len(STATE.encode())
    # At least one token is computed anew, and a row that has gone past the state cannot go back.
    reused = 0 if kernels == "numpy" else length
    assert cached == [0, reused, 0, reused, 0, 0]

    content = QUESTIONS[0]
    chat = f"{miniature.START}user\n{content}{miniature.END}\n{miniature.START}assistant\n"
    chunks = client.chat.completions.create(
        model=served.id,
        messages=[{"role": "user", "content": content}],
        max_tokens=12,
        temperature=0,
        stream=True,
    )
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == greedy(checkpoint, chat, 12)
