"""Images in `caldrix run`: its flags, the chat's commands, and what reaches the engine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from io import StringIO
from pathlib import Path

import attrs
import numpy as np
import pytest
import trio
from PIL import Image

from caldrix.cli import opening
from caldrix.cli.chat import chat_loop
from caldrix.cli.conversation import Chat
from caldrix.cli.main import execute
from caldrix.engine.engine import Engine, Generation, GenerationRequest, running_engine
from caldrix.engine.sampling import SamplingSettings
from caldrix.models.lane import Features, LaneError, Slice, find_lane
from caldrix.models.loading import TextModel, Vision, load_model
from caldrix.text.assembler import TextAssembler
from caldrix.vision.eyes import Eyes, find_processor
from caldrix.vision.image_files import read_image_file
from caldrix.vision.parts import MAX_FILE_BYTES, MAX_IMAGES, Detail, EncodedImage
from caldrix.vision.preprocessing import Pixels
from caldrix.vision.processor import ImageProcessor
from caldrix.weights.tensor import Float32
from caldrix_cpu.lane import KERNELS_VARIABLE
from tests.cli.test_chat import typed
from tests.support.image_files import png, saved
from tests.support.scripted import ScriptedExecutor, reply
from tests.support.serving import trio_test, wait_idle
from tests.support.tiny_model import write_tiny_model
from tests.support.tiny_vision_model import write_vision_model

SIZES = {"wide.png": (70, 40), "tall.jpg": (40, 90), "small.webp": (5, 5)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision_model(tmp_path_factory.mktemp("vision") / "tiny-eyes", context=4096)


@pytest.fixture(scope="module")
def seeing(checkpoint: Path) -> Iterator[TextModel]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(KERNELS_VARIABLE, "numpy")
        with load_model(checkpoint, lane=find_lane("cpu"), threads=1) as model:
            yield model


@pytest.fixture(scope="module")
def processor(seeing: TextModel, checkpoint: Path) -> ImageProcessor:
    found = find_processor(seeing, checkpoint)
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands run in: pictures, and what is none."""
    kinds = {".png": "PNG", ".jpg": "JPEG", ".webp": "WEBP"}
    for seed, (name, (width, height)) in enumerate(SIZES.items()):
        levels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
        picture = saved(Image.fromarray(levels), kinds[Path(name).suffix])
        (tmp_path / name).write_bytes(picture)
    # Whole by its header; its pixels end early.
    (tmp_path / "cut.png").write_bytes(png(b"\0" * 99, 70, 40))
    (tmp_path / "moving.gif").write_bytes(saved(Image.new("RGB", (4, 4)), "GIF"))
    (tmp_path / "broad.png").write_bytes(saved(Image.new("L", (4097, 1)), "PNG"))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge.png").open("wb") as huge:
        huge.truncate(MAX_FILE_BYTES + 1)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Watched:
    """A tower that counts tiles, and can wait or fail; the requests that reached the engine."""

    def __init__(self, model: TextModel) -> None:
        assert model.vision is not None
        self._vision = model.vision
        self.tiles = 0
        self.fails = False
        self.interrupts = False
        """Whether the next tile is interrupted by Ctrl-C while it is in work."""
        self.requests: list[GenerationRequest] = []

    def encode(self, tile: Pixels) -> Float32:
        self.tiles += 1
        if self.fails:
            raise LaneError("the tower fell")
        if self.interrupts:
            self.interrupts = False
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(0.1)
        return self._vision.encode(tile)

    def watch(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        submit = engine.submit

        def watched(request: GenerationRequest) -> AbstractAsyncContextManager[Generation]:
            self.requests.append(request)
            return submit(request)

        monkeypatch.setattr(engine, "submit", watched)


@asynccontextmanager
async def chatting(
    seeing: TextModel,
    processor: ImageProcessor,
    monkeypatch: pytest.MonkeyPatch,
    *,
    context: int = 4096,
) -> AsyncIterator[tuple[Chat, Watched]]:
    """A chat with real eyes that hears ``yes`` to everything."""
    tokenizer, watched = seeing.tokenizer, Watched(seeing)
    (end,) = tokenizer.end_ids
    executor = ScriptedExecutor(reply(tokenizer.encode("yes"), end), tokenizer.vocab_size)
    model = attrs.evolve(seeing, executor=executor, context=context)
    async with running_engine(executor, context=context) as engine:
        watched.watch(engine, monkeypatch)
        eyes = Eyes(processor, watched.encode)
        yield Chat(model, engine, SamplingSettings(), eyes=eyes, name="tiny-eyes"), watched


def pictured(*names: str, detail: Detail = Detail.HIGH) -> list[EncodedImage]:
    return [read_image_file(Path(name), detail) for name in names]


def check_request(
    request: GenerationRequest,
    rendered: str,
    images: Sequence[EncodedImage],
    seeing: TextModel,
    processor: ImageProcessor,
) -> None:
    """The request has the images' tokens in its prompt, and each tile's own features there."""
    assert list(request.prompt) == processor.encode(rendered, images)
    if not images:
        assert request.features is None
        return
    assert seeing.vision is not None
    assert request.features is not None
    tiles = [tile for image in images for tile in processor.tiles(image)]
    expected = np.concatenate([seeing.vision.encode(tile) for tile in tiles])
    np.testing.assert_array_equal(request.features.rows, expected)
    image_token = processor.layout.image_token_id
    assert [request.prompt[place] for place in request.features.places] == (
        [image_token] * request.prompt.count(image_token)
    )


def turn(role: str, text: str, images: int = 0) -> str:
    blank = "" if images else " "
    return f"{role}:{blank}{'<image>' * images}{text}<end_of_utterance>\n"


def tiles_of(processor: ImageProcessor, *names: str) -> int:
    return sum(processor.plan(image).tiles for image in pictured(*names))


@trio_test
async def test_images_stay_in_the_conversation_and_are_seen_once(
    seeing: TextModel,
    processor: ImageProcessor,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first_two = ("wide.png", "tall.jpg")
    script = ["/image wide.png", "/image tall.jpg", "one", "two", "/image small.webp", "three"]
    async with chatting(seeing, processor, monkeypatch) as (chat, watched):
        chat.system = "be brief"
        await chat_loop(chat, typed([*script, "/reset", "four"]))
    said = "<|im_start|>" + turn("System", "be brief")
    said += turn("User", "one", 2)
    answered = turn("Assistant", "yes")
    expected = [(f"{said}Assistant:", pictured(*first_two))]
    said += answered + turn("User", "two")
    expected.append((f"{said}Assistant:", pictured(*first_two)))
    said += answered + turn("User", "three", 1)
    expected.append((f"{said}Assistant:", pictured(*SIZES)))
    alone = "<|im_start|>" + turn("System", "be brief") + turn("User", "four") + "Assistant:"
    expected.append((alone, []))
    for request, (rendered, images) in zip(watched.requests, expected, strict=True):
        check_request(request, rendered, images, seeing, processor)
    assert watched.tiles == tiles_of(processor, *SIZES)
    assert "before the next message: wide.png (70 x 40), tall.jpg (40 x 90)" in (
        capsys.readouterr().out
    )


@trio_test
async def test_images_that_wait_are_listed_and_dropped(
    seeing: TextModel,
    processor: ImageProcessor,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with chatting(seeing, processor, monkeypatch) as (chat, watched):
        chat.detail = Detail.LOW
        lines = ["/image", "/image wide.png", "/drop", "/image", "/image small.webp", "one"]
        await chat_loop(chat, typed(lines))
        assert chat.waiting == []
    (request,) = watched.requests
    rendered = "<|im_start|>" + turn("User", "one", 1) + "Assistant:"
    images = pictured("small.webp", detail=Detail.LOW)
    check_request(request, rendered, images, seeing, processor)
    none = "no image waits; /image FILE puts one before the next message"
    assert capsys.readouterr().out.splitlines()[1:] == [
        none,
        "before the next message: wide.png (70 x 40)",
        "no image waits now",
        none,
        "before the next message: small.webp (5 x 5)",
        "yes",
        "",
    ]


@trio_test
async def test_what_cannot_be_shown_is_a_line_and_the_chat_goes_on(
    seeing: TextModel,
    processor: ImageProcessor,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = ["/image nowhere.png", "/image moving.gif", "/image cut.png", "one", "/drop", "two"]
    lines += ["an <image>", *["/image small.webp"] * (MAX_IMAGES + 1), "three"]
    async with chatting(seeing, processor, monkeypatch) as (chat, watched):
        await chat_loop(chat, typed(lines))
        assert [message.text for message in chat.messages] == ["two", "yes", "three", "yes"]
    assert watched.tiles == MAX_IMAGES * tiles_of(processor, "small.webp")
    said = capsys.readouterr().out
    for line in (
        "\nnowhere.png is missing; name another file\n",
        "\nmoving.gif: the file is no PNG, JPEG or WebP image; save it as one of them\n",
        "\ncut.png: the image cannot be decoded as image/png: it is damaged or ends early; send it",
        "\nthe message spells <image>, which stands for an image to this model; write the word",
        f"\na conversation takes at most {MAX_IMAGES} images; /drop forgets those that wait, ",
    ):
        assert line in said


@trio_test
async def test_a_prompt_too_long_is_refused_before_any_image_is_decoded(
    seeing: TextModel,
    processor: ImageProcessor,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with chatting(seeing, processor, monkeypatch, context=64) as (chat, watched):
        # It can't be decoded, which would be told.
        await chat_loop(chat, typed(["/image cut.png", "one"]))
        assert (watched.tiles, watched.requests) == (0, [])
    said = capsys.readouterr().out
    assert "and the context of 64 tokens takes prompts of at most 63" in said
    assert said.endswith("before the next message: cut.png (70 x 40)\n\n")


@trio_test
async def test_a_tower_that_fails_fails_the_message_alone(
    seeing: TextModel,
    processor: ImageProcessor,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with chatting(seeing, processor, monkeypatch) as (chat, watched):
        watched.fails = True
        await chat_loop(chat, typed(["/image wide.png", "one"]))
        watched.fails = False
        await chat_loop(chat, typed(["two"]))
        assert [message.text for message in chat.messages] == ["two", "yes"]
        assert len(chat.messages[0].pictures) == 1
    assert "the tower fell" in capsys.readouterr().out


@trio_test
async def test_interrupt_stops_the_look_and_not_the_chat(
    seeing: TextModel,
    processor: ImageProcessor,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with chatting(seeing, processor, monkeypatch) as (chat, watched):
        watched.interrupts = True
        await chat_loop(chat, typed(["/image wide.png", "one"]))
        assert (watched.tiles, watched.requests, chat.messages) == (1, [], [])
        said = capsys.readouterr().out
        assert said.endswith(" (stopped)\nbefore the next message: wide.png (70 x 40)\n\n")
        await chat_loop(chat, typed(["two"]))
        await wait_idle(chat.engine)
    rendered = "<|im_start|>" + turn("User", "two", 1) + "Assistant:"
    (request,) = watched.requests
    check_request(request, rendered, pictured("wide.png"), seeing, processor)


@trio_test
async def test_a_text_model_is_named(
    seeing: TextModel,
    processor: ImageProcessor,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with chatting(seeing, processor, monkeypatch) as (chat, _):
        chat.eyes, chat.name = None, "reader"
        await chat_loop(chat, typed(["/image wide.png"]))
    assert "\nreader takes text only\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("plain.png", "plain.png"),
        ("two words.png", "two words.png"),
        ("two words.png", "'two words.png'"),
        ("two words.png", r"two\ words.png"),
        ("it's.png", "it's.png"),
        ("home.png", "~/home.png"),
        ("~nobody-of-that-name.png", "~nobody-of-that-name.png"),
    ],
)
def test_how_files_are_named_in_the_chat(
    name: str,
    spelled: str,
    files: Path,
    seeing: TextModel,
    processor: ImageProcessor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(files))
    (files / "wide.png").rename(files / name)

    async def put() -> list[str]:
        async with chatting(seeing, processor, monkeypatch) as (chat, _):
            await chat_loop(chat, typed([f"/image  {spelled} "]))
            return [picture.name for picture in chat.waiting]

    assert trio.run(put) == [name]


SMALL = ["--image", "small.webp"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--image", "nowhere.png"], "--image nowhere.png is missing; name another file"),
        (["--image", "folder"], "--image folder cannot be read: Is a directory"),
        (["--image", "pipe"], "--image pipe is not a regular file; name another file"),
        (["--image", "/dev/zero"], "--image /dev/zero is not a regular file; name another file"),
        (
            ["--image", "huge.png"],
            f"--image huge.png is over the limit of {MAX_FILE_BYTES} bytes; name another file",
        ),
        (
            [*SMALL, "--image", "moving.gif"],
            "--image moving.gif: the file is no PNG, JPEG or WebP image; save it as one of them",
        ),
        (
            ["--image", "broad.png"],
            "--image broad.png: the image is 4097 x 1 pixels; a side may have at most 4096, so "
            "send a smaller one",
        ),
        (SMALL * 9, "--image can be given at most 8 times, got 9"),
        (
            ["--image-detail", "low"],
            "--image-detail is of no use without an image; leave it out, or add --image",
        ),
        ([*SMALL, "--image-detail", "middling"], "--image-detail"),
    ],
)
def test_images_that_are_refused_before_a_model_is_looked_for(
    flags: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["run", "no-such-model", "-p", "x", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("caldrix: ")
    assert said in line


def test_a_text_model_refuses_images_before_it_is_loaded(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_model(files / "reader")
    monkeypatch.setattr(opening, "load_model", lambda *_, **__: pytest.fail("it was loaded"))
    assert execute(["run", "reader", "-p", "x", *SMALL]) == 2
    assert capsys.readouterr().err == "caldrix: reader takes text only; leave out --image\n"


@pytest.fixture
def by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNELS_VARIABLE, "numpy")


def says(seeing: TextModel, processor: ImageProcessor, rendered: str, image: EncodedImage) -> str:
    """What the model answers in 8 tokens, by steps of its executor."""
    assert seeing.vision is not None
    tokens = np.array(processor.encode(rendered, [image]), np.int64)
    rows = np.concatenate([seeing.vision.encode(tile) for tile in processor.tiles(image)])
    (places,) = np.nonzero(tokens == processor.layout.image_token_id)
    next_slice = Slice(0, 0, tokens, 1, Features(places, rows))
    assembler, text = TextAssembler(seeing.tokenizer), ""
    for _ in range(8):
        token = int(seeing.executor.step([next_slice])[0].argmax())
        if token in seeing.tokenizer.end_ids:
            break
        text += assembler.push(token)
        end = next_slice.start + len(next_slice.tokens)
        next_slice = Slice(0, end, np.array([token], np.int64), 1)
    return text + assembler.finish()


ASKED = "<|im_start|>" + turn("User", "What is it?", 1) + "Assistant:"


@pytest.mark.usefixtures("by_numpy")
@pytest.mark.parametrize("detail", [None, *Detail])
def test_one_answer_about_an_image(
    detail: Detail | None,
    checkpoint: Path,
    seeing: TextModel,
    processor: ImageProcessor,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = [] if detail is None else ["--image-detail", detail.value]
    command = ["run", str(checkpoint), "-p", "What is it?", "--max-tokens", "8", "--threads", "1"]
    assert execute([*command, "--image", "wide.png", *flags]) == 0
    (image,) = pictured("wide.png", detail=detail or Detail.HIGH)
    output = capsys.readouterr()
    assert output.out == says(seeing, processor, ASKED, image) + "\n"
    assert output.err.splitlines()[-1] == "looking at wide.png"
    (other,) = pictured("tall.jpg", detail=detail or Detail.HIGH)
    assert output.out != says(seeing, processor, ASKED, other) + "\n"


@pytest.mark.usefixtures("by_numpy")
def test_a_damaged_image_ends_one_answer_with_a_line_that_names_it(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["run", str(checkpoint), "-p", "What is it?", "--image", "cut.png"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "caldrix: cut.png: the image cannot be decoded as image/png: it is damaged or ends early; "
        "send it whole"
    )


@pytest.mark.usefixtures("by_numpy")
def test_interrupt_during_the_look_ends_one_answer(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiles = 0

    def interrupted(vision: Vision, tile: Pixels) -> Float32:
        nonlocal tiles
        tiles += 1
        os.kill(os.getpid(), signal.SIGINT)
        return vision.encoder.encode(vision.tower.patches(tile))

    monkeypatch.setattr(Vision, "encode", interrupted)
    assert execute(["run", str(checkpoint), "-p", "x", "--image", "wide.png"]) == 1
    output = capsys.readouterr()
    assert (output.out, output.err.splitlines()[-1]) == ("", "caldrix: interrupted")
    assert tiles == 1


@pytest.mark.usefixtures("by_numpy")
def test_a_chats_first_message_has_the_images_of_the_flags(
    checkpoint: Path,
    seeing: TextModel,
    processor: ImageProcessor,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO("What is it?\n/exit\n"))
    command = ["run", str(checkpoint), "--max-tokens", "8", "--threads", "1"]
    assert execute([*command, "--image", "wide.png"]) == 0
    (image,) = pictured("wide.png")
    assert capsys.readouterr().out == (
        "/help shows the commands\nbefore the next message: wide.png (70 x 40)\n"
        f"{says(seeing, processor, ASKED, image)}\n"
    )


@pytest.mark.usefixtures("by_numpy")
@pytest.mark.parametrize("flags", [["--prompt"], ["-p", "x", "--system"]])
def test_a_flag_that_spells_an_image(
    flags: Sequence[str], checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["run", str(checkpoint), *flags, "an <image>"]) == 2
    assert capsys.readouterr().err == (
        f"caldrix: {flags[-1]} spells <image>, which stands for an image to this model; "
        "write the word otherwise\n"
    )
