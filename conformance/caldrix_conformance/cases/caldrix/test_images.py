"""Images in chat messages: which are taken, how they are counted, and how the others are refused.

Pictures are sent at low detail wherever a case isn't about detail: a tile takes its time.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from caldrix_conformance.answers import Answer, Completion, JsonObject, numbers_in
from caldrix_conformance.contracts.caldrix.images import (
    BLUE,
    GIF,
    JPEG,
    RED,
    WEBP,
    WEBP_LOSSY,
    Picture,
    broken_png,
    image_part,
    png,
    png_kinds,
    png_of_bytes,
)
from caldrix_conformance.contracts.caldrix.records import record_of
from caldrix_conformance.endpoints import CHAT
from caldrix_conformance.goldens import Golden
from caldrix_conformance.marks import captured, checks
from caldrix_conformance.prompts import TOO_LONG
from caldrix_conformance.tables import row
from caldrix_conformance.target import ABSENT, Target

QUESTION = "Describe this image in one sentence."
PNG = png(32, 32)
WIDE = png(256, 16)
"""So flat that it is split into few tiles."""
LENGTH = 8


def text(words: str) -> JsonObject:
    return {"type": "text", "text": words}


def user(*parts: JsonObject) -> JsonObject:
    return {"role": "user", "content": list(parts)}


def about(*parts: JsonObject) -> list[JsonObject]:
    """One message that asks the question about ``parts``."""
    return [user(*parts, text(QUESTION))]


def after_a_talk(part: JsonObject) -> list[JsonObject]:
    """Messages in which ``part`` stands at PLACE."""
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    return [*said, user(text("Look:"), part)]


PLACE = "messages[2].content[1]"


def expect_refused(target: Target, part: JsonObject, *, within: bool = True) -> JsonObject:
    """The error object of the refusal of ``part``, which must name it."""
    answer = target.ask(CHAT, messages=after_a_talk(part))
    return answer.expect_refusal(PLACE, within=within)


Count = Callable[..., int]


@pytest.fixture(scope="session")
def count(target: Target) -> Count:
    """How many prompt tokens the question about some parts has; each is asked once."""
    known: dict[str, int] = {}

    def ask(*parts: JsonObject) -> int:
        key = repr(parts)
        if key not in known:
            known[key] = target.chat(messages=about(*parts)).usage.prompt_tokens
        return known[key]

    return ask


@pytest.fixture(scope="session")
def answer(target: Target) -> Answer:
    """An answer about a small picture."""
    return target.ask(CHAT, messages=about(PNG.part()), max_tokens=LENGTH)


@pytest.fixture(scope="session")
def completion(answer: Answer) -> Completion:
    return answer.completion(CHAT)


TAKEN = [
    row("images.part.taken", png(24, 24)),
    row("images.url.png", png(24, 24)),
    row("images.url.jpeg", JPEG),
    row("images.url.jpg", JPEG.named("jpg")),
    row("images.url.webp", WEBP),
    row("images.url.webp", WEBP_LOSSY),
    *(row("images.url.png-kinds", picture) for _, picture in png_kinds()),
]


@pytest.mark.parametrize("picture", TAKEN)
def test_taken(count: Count, picture: Picture) -> None:
    assert count(picture.part()) > 0, "a prompt of no tokens"


@checks("images.part.messages")
def test_in_several_messages(target: Target) -> None:
    first, *rest = about(PNG.part())
    reply = {"role": "assistant", "content": "A square."}
    target.chat(messages=[first, reply, *rest, *about(JPEG.part())])


@checks("images.part.answer")
@captured("images/document-describe")
def test_printed_answer(golden: Golden) -> None:
    golden.replay()


@checks("images.part.printed-count")
def test_printed_count(target: Target, completion: Completion) -> None:
    name = target.model.lower()
    if name != "smolvlm" and "smolvlm-256m" not in name:
        pytest.skip(f"the model is {target.model}, not SmolVLM-256M")
    seen = completion.usage.prompt_tokens
    assert seen == 82, f"{seen} prompt tokens, the document prints 82"


MALFORMED: list[JsonObject] = [
    {"type": "image_url"},
    {"type": "image_url", "image_url": None},
    {"type": "image_url", "image_url": PNG.url},
    {"type": "image_url", "image_url": [PNG.url]},
    {"type": "image_url", "image_url": {}},
    {"type": "image_url", "image_url": {"detail": "low"}},
    {"type": "image_url", "url": PNG.url},
    image_part(None),
    image_part(7),
    image_part([PNG.url]),
]


@checks("images.part.malformed")
@pytest.mark.parametrize("part", MALFORMED)
def test_malformed(target: Target, part: JsonObject) -> None:
    expect_refused(target, part, within=False)


@checks("images.text.joined")
def test_joined(target: Target) -> None:
    def ask(*words: str) -> Completion:
        parts = map(text, words)
        return target.chat(messages=[user(PNG.part(), *parts)], max_tokens=LENGTH)

    seen, wanted = ask("Look here.", "What is it?"), ask("Look here.\nWhat is it?")
    counts = seen.usage.prompt_tokens, wanted.usage.prompt_tokens
    assert counts[0] == counts[1], f"{counts[0]} tokens as two texts, {counts[1]} as one"
    assert seen.text == wanted.text, f"{seen.text!r} of two texts, {wanted.text!r} of one"


def cut(picture: Picture) -> Picture:
    """The picture without its end."""
    return Picture(picture.subtype, picture.data[: len(picture.data) // 2])


PADDED = png_of_bytes(200)
"""No multiple of three bytes, so that its base64 ends in padding."""
ENCODED = PNG.url.partition(",")[2]
SOUND = Picture("webp", b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(28))

REFUSED_URLS = [
    *(
        row("images.url.signature", picture.url)
        for picture in (
            *(PNG.named("jpeg"), PNG.named("jpg"), PNG.named("webp")),
            *(JPEG.named("png"), JPEG.named("webp"), WEBP.named("png"), WEBP.named("jpeg")),
            *(GIF.named("png"), SOUND, Picture("png", b"no picture at all")),
        )
    ),
    row("images.url.gif", GIF.url),
    *(
        row("images.url.other-types", url)
        for url in (
            *(PNG.named("bmp").url, PNG.named("avif").url, PNG.named("svg+xml").url),
            *(f"data:text/plain;base64,{ENCODED}", f"data:;base64,{ENCODED}"),
            f"data:application/octet-stream;base64,{ENCODED}",
        )
    ),
    row("images.url.not-base64", f"data:image/png,{ENCODED}"),
    row("images.url.not-base64", "data:image/png,%89PNG%0D%0A%1A%0A"),
    row("images.url.remote", "http://127.0.0.1:9/a.png"),
    row("images.url.remote", "https://localhost:9/a.png"),
    *(
        row("images.url.other-schemes", url)
        for url in ("file:///etc/hostname", "ftp://127.0.0.1/a.png", "a.png", ENCODED, "")
    ),
    *(
        row("images.base64.malformed", f"data:image/png;base64,{spelled}")
        for spelled in (
            *(f"{ENCODED[:40]}!{ENCODED[40:]}", f"{ENCODED[:40]}-{ENCODED[40:]}"),
            *(f"{ENCODED[:40]}é{ENCODED[40:]}", f"%{ENCODED}", "=!?="),
        )
    ),
    row("images.base64.padding", PADDED.url.rstrip("=")),
    row("images.base64.empty", "data:image/png;base64,"),
]


@pytest.mark.parametrize("url", REFUSED_URLS)
def test_refused_url(target: Target, url: str) -> None:
    expect_refused(target, image_part(url))


def first_caller(ours: socket.socket) -> object:
    """The address of whoever calls first, who is let go at once: no picture is to come."""
    connection, address = ours.accept()
    connection.close()
    return address


@checks("images.url.never-fetched")
def test_never_fetched(target: Target) -> None:
    """The URL leads to a socket of ours, at which nobody may call."""
    for scheme in ("http", "https"):
        with socket.create_server(("127.0.0.1", 0)) as ours, ThreadPoolExecutor(1) as pool:
            address = ours.getsockname()
            caller = pool.submit(first_caller, ours)
            part = image_part(f"{scheme}://127.0.0.1:{address[1]}/a.png")
            try:
                target.ask(CHAT, messages=about(part))
            finally:
                # Whatever came of that: the last caller is ours, and ends the waiting.
                last = socket.create_connection(address)
            with last:
                called = caller.result() != last.getsockname()
            assert not called, "the server called at the URL's address"


@checks("images.bytes.broken")
@pytest.mark.parametrize(
    "picture",
    [
        pytest.param(broken_png(8, 8), id="pixels"),
        pytest.param(png(0, 8), id="no-width"),
        *(pytest.param(cut(one), id=one.subtype) for one in (PNG, JPEG, WEBP)),
    ],
)
def test_broken(target: Target, picture: Picture) -> None:
    expect_refused(target, picture.part())
    target.get("/v1/models").expect(200)


@checks("images.detail.default")
@pytest.mark.parametrize("detail", ["auto", "high"])
def test_default_detail(count: Count, detail: str) -> None:
    absent, given = count(WIDE.part(ABSENT)), count(WIDE.part(detail))
    assert given == absent, f"{given} prompt tokens with {detail}, {absent} without a detail"


@checks("images.detail.high")
def test_high_detail(count: Count) -> None:
    high, low = count(WIDE.part("high")), count(WIDE.part("low"))
    assert high > low, f"{high} prompt tokens at high detail, {low} at low"


@checks("images.detail.low")
def test_low_detail(count: Count) -> None:
    small, large = count(PNG.part("low")), count(png(1000, 600).part("low"))
    assert small == large, f"{small} prompt tokens of a small picture, {large} of a large one"


@checks("images.detail.other")
@pytest.mark.parametrize("detail", ["medium", "LOW", "", 1, True, ["low"]])
def test_other_detail(target: Target, detail: object) -> None:
    expect_refused(target, PNG.part(detail))


@checks("images.detail.null")
def test_null_detail(target: Target) -> None:
    expect_refused(target, PNG.part(None))


@checks("images.tokens.counted")
def test_counted(count: Count) -> None:
    without, given = count(), count(PNG.part())
    assert given > without + 1, f"{without} prompt tokens without an image, {given} with one"


@pytest.fixture(scope="session")
def eight(target: Target) -> Answer:
    """The answer about as many images as a request may hold."""
    return target.ask(CHAT, messages=about(*[PNG.part()] * 8))


@checks("images.tokens.every")
def test_every(count: Count, eight: Answer) -> None:
    """A template may put something between images, but hardly more than a token."""
    without = count()
    first, all_of_them = count(PNG.part()), eight.completion(CHAT).usage.prompt_tokens
    added = all_of_them - without
    assert abs(added - 8 * (first - without)) <= 8, (
        f"one image adds {first - without} prompt tokens, eight add {added}"
    )


@checks("images.tokens.total")
def test_total(completion: Completion) -> None:
    usage = completion.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, f"{usage}"


@checks("images.count.most")
def test_most(eight: Answer) -> None:
    eight.completion(CHAT)


@pytest.fixture(scope="session")
def nine(target: Target) -> Answer:
    return target.ask(CHAT, messages=about(*[PNG.part()] * 9))


@checks("images.count.over")
def test_too_many(target: Target, nine: Answer) -> None:
    nine.expect_refusal("messages")
    apart = [*about(*[PNG.part()] * 5), {"role": "assistant", "content": "Five."}]
    messages = [*apart, *about(*[PNG.part()] * 4)]
    target.ask(CHAT, messages=messages).expect_refusal("messages")


@checks("images.count.number")
def test_number(nine: Answer) -> None:
    message = nine.expect(400).error_message
    assert 8 in numbers_in(message), f"the message does not say 8: {message!r}"


@checks("images.prompt.too-long")
def test_too_long(target: Target) -> None:
    """A broken image of its own is refused by its place, a prompt too long as messages."""
    messages = [user(broken_png(64, 64).part(), text(TOO_LONG))]
    target.ask(CHAT, messages=messages).expect_refusal("messages")


PLACEHOLDER = "Look at <image> and tell."


@checks("images.placeholder.refused")
@pytest.mark.parametrize("parts", [[], [PNG.part()]], ids=["alone", "beside-an-image"])
def test_placeholder(target: Target, parts: Sequence[JsonObject]) -> None:
    target.ask(CHAT, messages=[user(*parts, text(PLACEHOLDER))]).expect(400)


@checks("images.placeholder.words")
def test_placeholder_words(target: Target) -> None:
    answer = target.ask(CHAT, messages=[user(text(PLACEHOLDER))])
    message = answer.expect(400).error_message
    assert "image placeholder count" in message, f"the message is {message!r}"


@checks("images.placeholder.string")
def test_placeholder_string(target: Target) -> None:
    target.ask(CHAT, **CHAT.prompt(PLACEHOLDER)).expect(400)


@checks("images.answer.sees")
def test_sees(target: Target) -> None:
    question = text("What colour is this picture?")
    seen = [
        target.chat(messages=[user(png(64, 64, colour).part(), question)], max_tokens=LENGTH).text
        for colour in (RED, BLUE)
    ]
    assert seen[0] != seen[1], f"a red picture and a blue one are both answered with {seen[0]!r}"


@pytest.fixture(scope="session")
def again(target: Target, completion: Completion) -> Completion:
    """What the same request is answered a second time."""
    return target.chat(messages=about(PNG.part()), max_tokens=LENGTH)


@checks("images.answer.same")
def test_same(completion: Completion, again: Completion) -> None:
    assert again.text == completion.text, f"{again.text!r}, and {completion.text!r} before"


@checks("images.answer.streamed")
def test_streamed(target: Target, completion: Completion) -> None:
    streamed = target.stream(CHAT, messages=about(PNG.part()), max_tokens=LENGTH)
    assert streamed.text == completion.text, (
        f"streamed {streamed.text!r}, as a whole {completion.text!r}"
    )


@checks("images.answer.text-only")
def test_text_only(target: Target) -> None:
    asked = {"role": "user", "content": QUESTION}
    as_text, as_part = (target.chat(messages=[one]) for one in (asked, user(text(QUESTION))))
    counts = as_text.usage.prompt_tokens, as_part.usage.prompt_tokens
    assert counts[0] == counts[1], f"{counts[0]} prompt tokens as a string, {counts[1]} as a part"


@checks("images.rows.own")
def test_own_row(target: Target, again: Completion) -> None:
    cached = record_of(target, again).get("cached_tokens")
    if cached is None:
        pytest.skip("the records don't say how much of a prompt was kept from before")
    assert cached == 0, f"{cached} prompt tokens come from another request's row"
