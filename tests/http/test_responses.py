"""The events of a stream, made the short way and the long one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldrix.http.caldrix.responses import CHAT, TEXT, Envelope, Shape
from caldrix.http.encoding import encode_json
from caldrix.http.sse import encode_event

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@pytest.mark.parametrize("shape", [CHAT, TEXT])
@given(model=texts, text=texts)
def test_a_text_event_is_the_chunk_encoded_whole(shape: Shape, model: str, text: str) -> None:
    envelope = Envelope(shape, 7, 1_700_000_000, model)
    whole = encode_event(encode_json(envelope.chunk(text, None, None)))
    assert envelope.text_event().encode(text) == whole
