"""The tokens of images in a prompt, beyond what is compared with the reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tokenizers import models

from caldrix.models.fields import Fields
from caldrix.text.template import ChatTemplate, render_chat
from caldrix.text.tokenizer import Tokenizer
from caldrix.vision.errors import PlaceholderCount, UnsupportedProcessor
from caldrix.vision.layout import ImageLayout, template_content
from caldrix.vision.parts import Detail
from caldrix.vision.processor import ImageProcessor
from caldrix.vision.settings import ProcessorSettings
from caldrix.vision.tiling import Size, TilePlan, plan_tiles
from tests.references import vision_pictures as pictures
from tests.support.image_files import exif, saved, sent

TOKENS = 64
SETTINGS = ProcessorSettings.from_fields(
    Fields("preprocessor_config.json", pictures.PREPROCESSOR_CONFIG), TOKENS
)
# What a template of SmolVLM's kind does with parts.
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message.role | capitalize }}:"
    "{% if message.content[0].type != 'image' %} {% endif %}"
    "{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    pictures.tokenizer().save(str(directory / "tokenizer.json"))
    return Tokenizer.from_directory(directory)


@pytest.fixture(scope="module")
def layout(tokenizer: Tokenizer) -> ImageLayout:
    return ImageLayout.for_tokenizer(tokenizer, TOKENS)


def plan(width: int, height: int, detail: Detail = Detail.HIGH) -> TilePlan:
    return plan_tiles(Size(width, height), detail, SETTINGS)


@given(st.integers(1, 4096), st.integers(1, 4096), st.sampled_from(Detail))
def test_every_size_has_a_plan(width: int, height: int, detail: Detail) -> None:
    made = plan(width, height, detail)
    side = SETTINGS.tile_side
    assert max(made.resized.width, made.resized.height) == 2048
    assert max(made.rows, made.columns) <= 4
    if detail is Detail.LOW:
        assert (made.tiles, made.canvas) == (1, Size(side, side))
    else:
        assert made.canvas == Size(made.columns * side, made.rows * side)
        assert 5 <= made.tiles <= 17


@pytest.mark.parametrize(
    ("made", "tokens"),
    [
        # An image token is 64 features; a tile has 2 marks, the whole image 3; a row a newline.
        (plan(64, 64, Detail.LOW), 64 + 3),
        (plan(1100, 700), 12 * (64 + 2) + 3 + 64 + 3),
        (plan(4096, 2), 4 * (64 + 2) + 1 + 64 + 3),
        (plan(4096, 4096), 16 * (64 + 2) + 4 + 64 + 3),
    ],
)
def test_count(layout: ImageLayout, made: TilePlan, tokens: int) -> None:
    assert layout.count(made) == tokens


def test_small_settings_leave_an_image_whole(layout: ImageLayout) -> None:
    config = {**pictures.PREPROCESSOR_CONFIG, "size": {"longest_edge": 512}}
    small = ProcessorSettings.from_fields(Fields("preprocessor_config.json", config), TOKENS)
    made = plan_tiles(Size(900, 20), Detail.HIGH, small)
    assert (made.rows, made.columns, made.tiles) == (0, 0, 1)
    assert layout.image_text(made) == layout.image_text(plan(9, 9, Detail.LOW))


def test_an_image_lying_on_its_side_is_planned_upright(layout: ImageLayout) -> None:
    picture = Image.new("RGB", (600, 200))
    processor = ImageProcessor(SETTINGS, layout)
    lying = processor.plan(sent(saved(picture, "JPEG", exif=b"Exif\0\0" + exif(8)), "image/jpeg"))
    assert (lying.rows, lying.columns) == (4, 2)
    assert lying.source == Size(200, 600)


def test_from_parts_to_tokens(tokenizer: Tokenizer, layout: ImageLayout) -> None:
    image = sent(saved(Image.new("RGB", (8, 8)), "PNG"), detail="low")
    messages = [
        {"role": "system", "content": template_content(["Be brief."])},
        {"role": "user", "content": template_content([image, "Look.", "What is it?", image])},
    ]
    rendered = render_chat(ChatTemplate(TEMPLATE, "", ""), messages)
    assert rendered.text == (
        "<|im_start|>System: Be brief.<end_of_utterance>\n"
        "User:<image>Look.\nWhat is it?<image><end_of_utterance>\nAssistant:"
    )
    ids = ImageProcessor(SETTINGS, layout).encode(rendered.text, [image, image])
    assert ids.count(layout.image_token_id) == 2 * TOKENS
    around = rendered.text.replace("<image>", "")
    assert len(ids) == len(tokenizer.encode_prompt(around)) + 2 * (TOKENS + 3)


def test_parts_keep_their_places() -> None:
    image = sent(saved(Image.new("RGB", (8, 8)), "PNG"))
    assert template_content(["a", "b", image, "c", image, image, "d", "e"]) == [
        {"type": "text", "text": "a\nb"},
        {"type": "image"},
        {"type": "text", "text": "c"},
        {"type": "image"},
        {"type": "image"},
        {"type": "text", "text": "d\ne"},
    ]


@pytest.mark.parametrize("rendered", ["none", "<image><image>"])
def test_placeholders_are_as_many_as_images(layout: ImageLayout, rendered: str) -> None:
    """Whatever wrote them: a role, or a template that leaves images out."""
    with pytest.raises(PlaceholderCount, match="image placeholder count"):
        layout.encode(rendered, [plan(8, 8)])


def test_a_tokenizer_without_tokens_for_images(tmp_path: Path) -> None:
    plain = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    plain.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedProcessor, match="no token <fake_token_around_image>"):
        ImageLayout.for_tokenizer(Tokenizer.from_directory(tmp_path), TOKENS)


def test_a_text_that_a_tokenizer_makes_a_placeholder_of_is_refused(tmp_path: Path) -> None:
    """Some normalize texts before they look for special tokens."""
    library = pictures.tokenizer()
    library.normalizer = tokenizers.normalizers.NFKC()
    library.add_special_tokens([tokenizers.AddedToken("<image>", special=True, normalized=True)])
    library.save(str(tmp_path / "tokenizer.json"))
    normalizing = ImageLayout.for_tokenizer(Tokenizer.from_directory(tmp_path), TOKENS)
    seen = [plan(100, 100)]
    assert normalizing.encode("an <image> of it", seen)
    with pytest.raises(PlaceholderCount, match="of the prompt is 2, where 1 would be right"):
        normalizing.encode("an <image> of an ＜image＞", seen)
