"""Times this project beside llama.cpp on the same weights, in interleaved rounds.

Each round times both, and gives a ratio; the median and the worst ratio are what to go by, since
a machine's own speed drifts. Wants llama-cpp-python (the bench extra) and gguf (the dev extra).
Run nothing beside it.

Usage: python -m tests.benchmarks.peers [--rounds N] [--threads N]
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import gguf
import llama_cpp
import numpy as np
from attrs import frozen
from rich.console import Console
from rich.table import Table

from caldrix.weights.cache import cache_root
from caldrix.weights.checkpoint import open_checkpoint
from caldrix.weights.gguf import GgufCheckpoint
from caldrix.weights.names import resolve
from tests.benchmarks.measure import CONTEXT, PREFILL, caldrix, measure

# ctypes needs the callback to stay referenced.
_SILENCE = llama_cpp.llama_log_callback(lambda level, text, user: None)


@frozen(eq=False)
class LlamaCpp:
    """llama.cpp through the C interface that llama-cpp-python binds."""

    name: str
    context: ctypes.c_void_p
    batch: llama_cpp.llama_batch

    def prefill(self, tokens: Sequence[int]) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self._compute(tokens, 0)

    def decode(self, token: int, position: int) -> None:
        self._compute([token], position)

    def _compute(self, tokens: Sequence[int], start: int) -> None:
        batch = self.batch
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index] = token
            batch.pos[index] = start + index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0
            batch.logits[index] = index == len(tokens) - 1
        status = llama_cpp.llama_decode(self.context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode gave {status}")
        llama_cpp.llama_synchronize(self.context)
        llama_cpp.llama_get_logits(self.context)


@contextmanager
def llama_cpp_model(path: Path, threads: int) -> Iterator[LlamaCpp]:
    """A GGUF file in llama.cpp, on the CPU."""
    llama_cpp.llama_backend_init()
    llama_cpp.llama_log_set(_SILENCE, ctypes.c_void_p(0))
    model_settings = llama_cpp.llama_model_default_params()
    model_settings.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_settings)
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = CONTEXT
    settings.n_batch = settings.n_ubatch = PREFILL
    settings.n_threads = settings.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, settings)
    batch = llama_cpp.llama_batch_init(PREFILL, 0, 1)
    try:
        yield LlamaCpp(f"llama.cpp {llama_cpp.__version__}", context, batch)
    finally:
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(model)


def float32_copy(source: Path) -> Path:
    """The same model in float32, made once in the cache."""
    target = cache_root() / "benchmarks" / f"{source.stem}.f32.gguf"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(source)
    unfinished = target.with_suffix(".part")
    with open_checkpoint(source) as checkpoint:
        assert isinstance(checkpoint, GgufCheckpoint)
        writer = gguf.GGUFWriter(unfinished, str(checkpoint.metadata["general.architecture"]))
        for key, entry in reader.fields.items():
            if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
                continue
            kind = entry.types[0]
            element = entry.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, entry.contents(), kind, sub_type=element)
        for name, tensor in checkpoint.tensors.items():
            writer.add_tensor(name, np.ascontiguousarray(tensor.to_float32()))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    unfinished.rename(target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    path = float32_copy(resolve("smollm2").path)
    with (
        caldrix(path, "cpu", options.threads) as ours,
        llama_cpp_model(path, options.threads) as theirs,
    ):
        measure(ours)
        measure(theirs)
        rounds = [(measure(ours), measure(theirs)) for _ in range(options.rounds)]
    table = Table("", ours.name, theirs.name, "ratio", "worst round", title="SmolLM2-135M, F32")
    for name in ("pp", "tg"):
        pairs = [(getattr(a, name), getattr(b, name)) for a, b in rounds]
        ratios = [a / b for a, b in pairs]
        table.add_row(
            name,
            f"{median(a for a, _ in pairs):.1f}",
            f"{median(b for _, b in pairs):.1f}",
            f"{median(ratios):.2f}",
            f"{min(ratios):.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
