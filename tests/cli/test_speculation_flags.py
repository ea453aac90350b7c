"""The flags of guessing ahead: what they ask for, what is refused, what is noted, what is kept."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx2
import pytest
import structlog
from attrs import define, field
from cyclopts import App

from caldrix.cli.main import execute
from caldrix.cli.speculation import SpeculationFlags
from caldrix.engine.speculation.memory import (
    MemoryKey,
    SpeculationMemory,
    SpeculationMemoryUnusable,
)
from caldrix.engine.speculation.ngram import SuffixLengths
from caldrix.engine.speculation.opening import open_speculation
from caldrix.engine.speculation.settings import (
    SpeculationRefused,
    SpeculationSettings,
    settle,
)
from caldrix.models.encoder_program import EncoderProgram
from caldrix.models.lane import Encoder, Executor, LaneOptions, LaneUnavailable
from caldrix.models.loading import load_model
from caldrix.models.program import Program
from caldrix.weights.tensor import Tensor
from tests.support.scripted import ScriptedExecutor, endless
from tests.support.tiny_model import write_tiny_model

ROOT = Path(__file__).parents[2]


@define
class ScriptedLane:
    """Compiles whatever it is given to an executor that says one token; keeps the options."""

    name: str = "scripted"
    verifies_drafts: bool = True
    picks: bool = False
    usual_rows: int = 1
    refuses_after: int = 9
    asked: list[LaneOptions] = field(factory=list)

    def batches(self, formats: Set[str]) -> bool:
        return True

    @contextmanager
    def compile(
        self, program: Program, weights: Mapping[str, Tensor], options: LaneOptions
    ) -> Iterator[Executor]:
        self.asked.append(options)
        if len(self.asked) > self.refuses_after:
            raise LaneUnavailable("it does not fit; choose a smaller model")
        yield ScriptedExecutor(endless(7), program.vocab_size)

    def compile_encoder(
        self, program: EncoderProgram, weights: Mapping[str, Tensor], options: LaneOptions
    ) -> AbstractContextManager[Encoder]:
        raise LaneUnavailable("it sees nothing")

    def describe(self) -> Mapping[str, object]:
        return {}


def parsed(*flags: str) -> SpeculationSettings:
    def command(flags: SpeculationFlags | None = None) -> SpeculationSettings:
        return (flags or SpeculationFlags()).settings()

    app = App(default_command=command)
    settings = app(flags, exit_on_error=False, print_error=False, result_action="return_value")
    assert isinstance(settings, SpeculationSettings)
    return settings


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], SpeculationSettings("off", ngram=SuffixLengths(2, 4))),
        (["--speculate", "off"], SpeculationSettings("off")),
        (["--speculate", "ngram"], SpeculationSettings("ngram")),
        (["--speculate", "auto"], SpeculationSettings("auto")),
        (
            ["--speculate", "ngram", "--ngram", "1:1", "--draft-tokens", "1"],
            SpeculationSettings("ngram", draft_tokens=1, ngram=SuffixLengths(1, 1)),
        ),
        (
            ["--speculate", "draft", "--draft", "small", "--draft-tokens", "8"],
            SpeculationSettings("draft", draft="small", draft_tokens=8),
        ),
        (
            [
                "--speculate",
                "auto",
                "--draft",
                "small",
                "--ngram",
                "3:8",
                "--speculation-memory",
                "kept.json",
            ],
            SpeculationSettings(
                "auto", draft="small", ngram=SuffixLengths(3, 8), memory=Path("kept.json")
            ),
        ),
    ],
)
def test_what_flags_ask_for(flags: Sequence[str], expected: SpeculationSettings) -> None:
    assert parsed(*flags) == expected


OF_NO_USE = "is of no use with --speculate"


@pytest.mark.parametrize("command", ["serve", "run"])
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--speculate fast", '"fast"'),
        ("--speculate draft", "--speculate draft needs a second model; name it with --draft"),
        (
            "--draft x",
            f"--draft {OF_NO_USE} off; leave it out, or choose --speculate draft or auto",
        ),
        (
            "--draft-tokens 4",
            f"--draft-tokens {OF_NO_USE} off; leave it out, or choose --speculate draft, ngram or "
            "auto",
        ),
        ("--ngram 2:4", f"--ngram {OF_NO_USE} off; leave it out, or choose --speculate ngram or"),
        ("--speculation-memory x", f"--speculation-memory {OF_NO_USE} off; leave it out, or"),
        ("--speculate ngram --draft x", f"--draft {OF_NO_USE} ngram; leave it out, or choose"),
        ("--speculate draft --draft x --ngram 2:4", f"--ngram {OF_NO_USE} draft; leave it out"),
        ("--speculate ngram --draft-tokens 0", "--draft-tokens must be 1 to 8, got 0"),
        ("--speculate ngram --draft-tokens 9", "--draft-tokens must be 1 to 8, got 9"),
        *(
            (
                f"--speculate ngram --ngram {text}",
                "--ngram must be the shortest and the longest text to look up, such as 2:4, within "
                f"1:8, got {text}",
            )
            for text in ("0:2", "4:2", "2:9", "2", "2:", "2:3:4", "a:b", "-1:2", "２:4")
        ),
        ("--speculate ngram --weight-budget 1G", "--speculate ngram: guesses need all weights in"),
        (
            "--speculate ngram --speculation-memory /none/x",
            "--speculation-memory /none/x cannot be used: there is no directory /none; name",
        ),
    ],
)
def test_refusals_come_before_any_model_is_loaded(
    command: str, flags: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute([command, "no-such-model", *flags.split(" ")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("caldrix: ")
    assert said in line


@pytest.mark.parametrize("mode", ["ngram", "draft"])
def test_a_batched_server_is_refused_by_name(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--speculate", mode, *(["--draft", "x"] if mode == "draft" else [])]
    assert execute(["serve", "no-such-model", "--max-batch", "4", *flags]) == 2
    assert capsys.readouterr().err == (
        f"caldrix: --speculate {mode}: guesses are for one request at a time, and --max-batch is "
        "4; restart with --max-batch 1\n"
    )


@pytest.mark.parametrize("command", ["serve", "run"])
def test_kernels_that_cannot_verify_are_refused_by_name(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CALDRIX_CPU_KERNELS", "numpy")
    assert execute([command, "no-such-model", "--speculate", "ngram"]) == 2
    assert capsys.readouterr().err == (
        "caldrix: --speculate ngram: the cpu lane cannot verify a draft with the kernels in use; "
        "choose another --backend, or leave out --speculate\n"
    )


@pytest.mark.parametrize(
    ("lane", "max_batch", "weight_budget", "reason"),
    [
        (ScriptedLane(), 2, None, "restart with --max-batch 1"),
        (ScriptedLane(), 1, 10**9, "guesses need all weights in memory"),
        (ScriptedLane(verifies_drafts=False), 1, None, "the scripted lane cannot verify a draft"),
    ],
)
def test_auto_turns_itself_off_with_a_note(
    tmp_path: Path, lane: ScriptedLane, max_batch: int, weight_budget: int | None, reason: str
) -> None:
    memory = tmp_path / "memory.json"
    memory.write_text("not looked at")
    asked = SpeculationSettings("auto", memory=memory)
    with structlog.testing.capture_logs() as logs:
        settled = settle(asked, lane, max_batch=max_batch, weight_budget=weight_budget)
    assert settled.mode == "off"
    (note,) = logs
    assert (note["event"], note["log_level"]) == ("speculation_off", "warning")
    assert reason in note["reason"]


def test_where_it_is_off_nothing_is_asked() -> None:
    lane = ScriptedLane(verifies_drafts=False)
    off = SpeculationSettings()
    assert settle(off, lane, max_batch=8, weight_budget=1) is off


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    write_tiny_model(path)
    return path


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    path = tmp_path / "draft"
    path.mkdir()
    write_tiny_model(path)
    return path


def of_other_vocabulary(draft: Path) -> None:
    path = draft / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]
    path.write_text(json.dumps(content))


def opened(
    settings: SpeculationSettings, model: Path, lane: ScriptedLane, *, context: int | None = None
) -> str | None:
    """The summary of what guesses ahead; nothing is kept open."""
    with (
        load_model(model, lane=lane, context=context) as loaded,
        open_speculation(settings, loaded, path=model, lane=lane, threads=1) as speculation,
    ):
        return None if speculation is None else speculation.summary


def test_nothing_is_opened_where_it_is_off(model: Path) -> None:
    assert opened(SpeculationSettings(), model, ScriptedLane()) is None


@pytest.mark.parametrize(
    ("settings", "summary"),
    [
        (SpeculationSettings("ngram"), "n-gram lookup 2:4, length tuned"),
        (SpeculationSettings("auto"), "n-gram lookup 2:4, length tuned"),
        (
            SpeculationSettings("ngram", ngram=SuffixLengths(1, 3), draft_tokens=5),
            "n-gram lookup 1:3, 5 a step",
        ),
    ],
)
def test_lookup_needs_no_second_model(
    model: Path, settings: SpeculationSettings, summary: str
) -> None:
    lane = ScriptedLane()
    assert opened(settings, model, lane) == summary
    assert len(lane.asked) == 1


@pytest.mark.parametrize("mode", ["draft", "auto"])
@pytest.mark.parametrize(("context", "drafted"), [(64, 64), (None, 128)])
def test_the_draft_is_loaded_after_the_model_and_counts_its_memory(
    model: Path, draft: Path, mode: str, context: int | None, drafted: int
) -> None:
    lane = ScriptedLane()
    settings = SpeculationSettings("draft" if mode == "draft" else "auto", draft=str(draft))
    assert opened(settings, model, lane, context=context) == "draft model draft, length tuned"
    _, asked = lane.asked
    assert asked == LaneOptions(
        context=drafted, rows=1, threads=1, reserved=ScriptedExecutor.row_bytes
    )


def test_a_draft_of_a_shorter_context_keeps_its_own(model: Path, draft: Path) -> None:
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 48}))
    lane = ScriptedLane()
    opened(SpeculationSettings("draft", draft=str(draft)), model, lane)
    assert [each.context for each in lane.asked] == [128, 48]


def test_a_model_with_states_verifies_no_guesses(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "qwen3_5")
    lane = ScriptedLane()
    with pytest.raises(SpeculationRefused) as refused:
        opened(SpeculationSettings("ngram"), tmp_path, lane)
    assert str(refused.value) == (
        "--speculate ngram: the model's states cannot go back over rejected guesses; "
        "leave out --speculate"
    )
    with structlog.testing.capture_logs() as logs:
        assert opened(SpeculationSettings("auto"), tmp_path, lane) is None
    assert [entry["event"] for entry in logs] == ["speculation_off"]


def test_a_draft_with_states_is_refused(model: Path, tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    write_tiny_model(draft, "qwen3_5")
    settings = SpeculationSettings("draft", draft=str(draft))
    with pytest.raises(SpeculationRefused, match=r"its states cannot go back .* another family"):
        opened(settings, model, ScriptedLane())


def break_nothing(draft: Path) -> None:
    """The lane is what refuses."""


def remove_weights(draft: Path) -> None:
    (draft / "model.safetensors").unlink()


def remove_all(draft: Path) -> None:
    for path in draft.iterdir():
        path.unlink()
    draft.rmdir()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (remove_all, "does not exist"),
        (remove_weights, "model.safetensors"),
        (
            of_other_vocabulary,
            "its token 32 is 'B', and the model's is 'A'; name a draft with the model's own "
            "vocabulary",
        ),
        (break_nothing, "it does not fit; choose a smaller model"),
    ],
)
def test_a_draft_that_fails_to_load(
    model: Path, draft: Path, tmp_path: Path, fault: object, reason: str
) -> None:
    assert callable(fault)
    fault(draft)
    fits = 1 if fault is break_nothing else 2
    asked = SpeculationSettings("draft", draft=str(draft))
    with pytest.raises(SpeculationRefused) as refused:
        opened(asked, model, ScriptedLane(refuses_after=fits))
    assert str(refused.value).startswith(f"--draft {draft}: ")
    assert reason in str(refused.value)
    # Under auto it gives way to lookup, and the memory is neither read nor written.
    memory = tmp_path / "memory.json"
    memory.write_text("of no format")
    asked = SpeculationSettings("auto", draft=str(draft), memory=memory)
    lane = ScriptedLane(refuses_after=fits)
    with structlog.testing.capture_logs() as logs:
        assert settle(asked, lane, max_batch=1, weight_budget=None) is asked
        assert opened(asked, model, lane) == "n-gram lookup 2:4, length tuned"
    (note,) = logs
    assert (note["event"], note["log_level"]) == ("draft_unusable", "warning")
    assert reason in note["reason"]
    assert memory.read_text() == "of no format"


def decode_and_interrupt(
    settings: SpeculationSettings, model: Path, lane: ScriptedLane, steps: int
) -> None:
    with (
        load_model(model, lane=lane) as loaded,
        open_speculation(settings, loaded, path=model, lane=lane) as speculation,
    ):
        assert speculation is not None
        for _ in range(steps):
            guess = speculation.speculator.guess([1, 2, 1, 2, 1], 8)
            speculation.speculator.record(guess, len(guess.tokens), 0.25)
        raise KeyboardInterrupt


def test_a_memory_is_read_before_and_written_after(model: Path, draft: Path) -> None:
    path = model.parent / "memory.json"
    lane = ScriptedLane()
    names = {
        SpeculationSettings("ngram", memory=path): "ngram 2:4",
        SpeculationSettings("auto", draft=str(draft), memory=path): f"draft {draft}",
    }
    for settings in names:
        assert settle(settings, lane, max_batch=1, weight_budget=None) is settings
        for steps in (1, 2):
            # What was learned is kept however the server ends.
            with pytest.raises(KeyboardInterrupt):
                decode_and_interrupt(settings, model, lane, steps)
    for settings, name in names.items():
        kinds = 3 if settings.mode == "ngram" else 1
        state = SpeculationMemory(path).recall(MemoryKey(str(model), "scripted", name), kinds)
        assert state is not None
        # A plain step, the only one of the first run, and one again, then a trial of one token.
        plain, trial, longer = state.steps[:3]
        assert (plain.weight > 2, trial.weight, longer.weight) == (True, 1, 0)


def test_a_memory_of_something_else_ends_the_start(model: Path) -> None:
    path = model.parent / "memory.json"
    path.write_text("{}")
    settings = SpeculationSettings("ngram", memory=path)
    with pytest.raises(SpeculationMemoryUnusable, match="it holds something else"):
        settle(settings, ScriptedLane(), max_batch=1, weight_budget=None)
    assert path.read_text() == "{}"


@pytest.mark.parametrize(
    "flags",
    [
        ["--speculate", "ngram", "--draft-tokens", "8", "--ngram", "1:2"],
        ["--speculate", "draft", "--draft-tokens", "3", "--draft", "{draft}"],
        ["--speculate", "auto", "--draft", "{draft}"],
        ["--speculate", "auto"],
    ],
)
def test_each_mode_gives_the_greedy_answer_of_plain_decoding(
    flags: Sequence[str], model: Path, draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", str(model), "-p", "abcabcabc", "--max-tokens", "60"]
    answers = []
    for more in ([], [flag.format(draft=draft) for flag in flags]):
        assert execute([*command, *more]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
    assert len(answers[0]) > 30


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A path that resolves; the model itself is scripted."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_a_server_says_what_is_on_and_keeps_what_it_learned(file: Path) -> None:
    memory = file.with_name("memory.json")
    flags = ["--port", "0", "--speculate", "ngram", "--speculation-memory", str(memory)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.scripted_process", str(file), *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            banner = [process.stdout.readline() for _ in range(7)]
            assert banner[-1] == "  guesses  n-gram lookup 2:4, length tuned\n"
            (address,) = (line.split()[1] for line in banner if "address" in line)
            body = {"model": "m", "prompt": "hi", "max_tokens": 60}
            usage = httpx2.post(f"{address}/completions", json=body, trust_env=False).json()[
                "usage"
            ]
            assert usage["completion_tokens"] == 60
            speculated = usage["speculative"]
            assert 0 < speculated["accepted"] <= speculated["proposed"]
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    state = SpeculationMemory(memory).recall(MemoryKey(str(file), "cpu", "ngram 2:4"), 3)
    assert state is not None
    assert state.steps[0].weight > 0


def test_a_terminal_chat_keeps_what_it_learned_when_it_is_ended(file: Path) -> None:
    memory = file.with_name("memory.json")
    flags = ["--speculate", "ngram", "--speculation-memory", str(memory), "-p", "hi"]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.scripted_run", str(file), *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(20)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM
    assert SpeculationMemory(memory).recall(MemoryKey(str(file), "cpu", "ngram 2:4"), 3)
