"""Guessing ahead on the hip lane: its rules and the kernels of a GPU, computed by the processor."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from caldrix.cli import opening
from caldrix.cli.main import execute
from caldrix.engine.engine import GenerationRequest, running_engine
from caldrix.engine.speculation.opening import open_speculation
from caldrix.engine.speculation.settings import SpeculationSettings
from caldrix.models.loading import load_model
from tests.soak.model import write_model
from tests.support.opencl import HipOnProcessor, require_device

PROMPTS = (tuple(range(97, 117)) * 2, (5, 6, 7, 8) * 6)
TOKENS = 60


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("models")
    return lambda family: path if (path := folder / family).exists() else write_model(path, family)


def answers(path: Path, settings: SpeculationSettings, dtype: str) -> tuple[list[list[int]], int]:
    """The tokens after each prompt, and how many of them had been guessed."""
    lane, accepted = HipOnProcessor(), 0
    said: list[list[int]] = []

    async def ask() -> None:
        nonlocal accepted
        speculator = None if speculation is None else speculation.speculator
        async with running_engine(
            model.executor, context=model.context, speculator=speculator
        ) as engine:
            for prompt in PROMPTS:
                tokens: list[int] = []
                async with engine.submit(GenerationRequest(prompt, TOKENS)) as generation:
                    while taken := await generation.take():
                        tokens += taken
                    accepted += generation.timeline.accepted_tokens
                said.append(tokens)

    with ExitStack() as stack:
        model = stack.enter_context(load_model(path, lane=lane, context=256, dtype=dtype))
        speculation = stack.enter_context(open_speculation(settings, model, path=path, lane=lane))
        trio.run(ask)
    return said, accepted


@pytest.mark.parametrize("dtype", ["bf16", "q8_0"])
def test_greedy_answers_are_those_of_plain_decoding(
    dtype: str, written: Callable[[str], Path]
) -> None:
    require_device()
    path = written("qwen3")
    plain, _ = answers(path, SpeculationSettings("off"), dtype)
    assert [len(tokens) for tokens in plain] == [TOKENS, TOKENS]
    for settings in (
        SpeculationSettings("ngram", draft_tokens=4),
        SpeculationSettings("draft", draft=str(path), draft_tokens=5),
        # That guesses wrong.
        SpeculationSettings("draft", draft=str(written("llama")), draft_tokens=3),
    ):
        said, accepted = answers(path, settings, dtype)
        assert said == plain
        if settings.draft == str(path):
            assert accepted > TOKENS


def test_a_quantized_model_is_computed_alone_and_may_guess(
    written: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    require_device()
    monkeypatch.setattr(opening, "find_lane", lambda name: HipOnProcessor())
    command = ["run", str(written("qwen3")), "-p", "abcabcabc", "--max-tokens", "12"]
    said = []
    for flags in (["--dtype", "q8_0"], ["--dtype", "q8_0", "--speculate", "ngram"]):
        assert execute([*command, "--context", "256", *flags]) == 0
        told = capsys.readouterr()
        said.append(told.out)
        assert "one request at a time: the hip lane computes no more together with" in told.err
    assert said[0] == said[1]
    assert execute([*command, "--context", "256", "--speculate", "auto"]) == 0
    told = capsys.readouterr()
    assert "speculation_off" in told.err
    assert "--max-batch is 8" in told.err
