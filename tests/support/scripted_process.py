"""`caldrix serve` on a scripted model, to be run as a process of its own and sent signals.

python -m tests.support.scripted_process FLAG... : the command's own flags. A model whose file is
called lost.gguf loses its device at its first step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from caldrix.cli.main import execute
from caldrix.models.builder import ProgramBuilder
from caldrix.models.loading import TextModel
from caldrix.text.template import ChatTemplate
from tests.support import miniature
from tests.support.losing import loses_its_device
from tests.support.serving import never_ends


@contextmanager
def scripted_model(
    path: Path, *, context: int | None, rows: int = 1, **options: object
) -> Iterator[TextModel]:
    """Stands in for load_model: a model that never ends."""
    vocab_size = miniature.tokenizer().vocab_size
    builder = ProgramBuilder("scripted", vocab_size=vocab_size, max_context=10**6)
    yield TextModel(
        tokenizer=miniature.tokenizer(),
        template=ChatTemplate(miniature.CHATML, "", miniature.END),
        program=builder.logits(builder.select(builder.embed("embedding", 1)), "embedding"),
        executor=loses_its_device(at_once=True) if path.stem == "lost" else never_ends(),
        context=10**6 if context is None else context,
        rows=rows,
    )


if __name__ == "__main__":
    with mock.patch("caldrix.cli.opening.load_model", scripted_model):
        sys.exit(execute(["serve", *sys.argv[1:]]))
