"""llama.cpp as a `Subject`, through the C interface that llama-cpp-python binds."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp
import numpy as np

from caldrix.errors import CaldrixError
from caldrix.models.lane import TokenIds
from caldrix.weights.tensor import Float32

BATCH = 512
CONTEXT = 2048

# ctypes needs the callback to stay referenced.
_SILENCE = llama_cpp.llama_log_callback(lambda level, text, user: None)


class LlamaCppError(CaldrixError):
    """llama.cpp gave no result; it says no more than a number."""


class LlamaCpp:
    """A model of llama.cpp's on the CPU, with a context for each number of sequences."""

    name = f"llama.cpp ({llama_cpp.__version__})"

    def __init__(self, model: ctypes.c_void_p, threads: int, positions: int) -> None:
        self.vocab_size = int(
            llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        )
        self._model = model
        self._threads = threads
        self._positions = positions
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self._position = 0

    def start(self, prompts: TokenIds, wanted: int = 1) -> Float32:
        """See `Subject.start`."""
        context = self._context(len(prompts))
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        self._position = count = prompts.shape[1]
        logits = []
        for sequence, prompt in enumerate(prompts):
            for start in range(0, count, BATCH):
                positions = np.arange(start, min(start + BATCH, count))
                sequences = np.full(len(positions), sequence)
                kept = positions >= count - wanted
                computed = self._compute(context, prompt[positions], positions, sequences, kept)
                # The next batch overwrites it.
                logits.append(computed.copy())
        return np.concatenate(logits)

    def decode(self, tokens: TokenIds) -> Float32:
        """See `Subject.decode`."""
        count = len(tokens)
        positions = np.full(count, self._position)
        self._position += 1
        everything = np.ones(count, np.bool_)
        return self._compute(self._contexts[count], tokens, positions, np.arange(count), everything)

    def close(self) -> None:
        """Frees what was made; the model is its owner's."""
        llama_cpp.llama_batch_free(self._batch)
        for context in self._contexts.values():
            llama_cpp.llama_free(context)

    def _context(self, sequences: int) -> ctypes.c_void_p:
        if sequences not in self._contexts:
            settings = llama_cpp.llama_context_default_params()
            settings.n_ctx = self._positions * sequences
            settings.n_seq_max = sequences
            settings.n_batch = settings.n_ubatch = BATCH
            settings.n_threads = settings.n_threads_batch = self._threads
            context = llama_cpp.llama_init_from_model(self._model, settings)
            if not context:
                raise LlamaCppError(f"llama.cpp made no context for {sequences} sequences")
            self._contexts[sequences] = context
        return self._contexts[sequences]

    def _compute(
        self,
        context: ctypes.c_void_p,
        tokens: TokenIds,
        positions: TokenIds,
        sequences: TokenIds,
        wanted: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    ) -> Float32:
        """One llama_decode; returns its own array, ``[number wanted, vocab_size]``."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for index, sequence in enumerate(sequences.tolist()):
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
        for pointer, values in (
            (batch.token, tokens),
            (batch.pos, positions),
            (batch.logits, wanted),
        ):
            np.ctypeslib.as_array(pointer, (len(tokens),))[:] = values
        status = llama_cpp.llama_decode(context, batch)
        if status != 0:
            raise LlamaCppError(f"llama_decode gave {status}")
        llama_cpp.llama_synchronize(context)
        rows = int(np.count_nonzero(wanted))
        if rows == 0:
            return np.empty((0, self.vocab_size), np.float32)
        pointer = llama_cpp.llama_get_logits(context)
        logits: Float32 = np.ctypeslib.as_array(pointer, (rows, self.vocab_size))
        return logits


def silence() -> None:
    """Keeps llama.cpp from logging each tensor; what fails is an error here."""
    llama_cpp.llama_log_set(_SILENCE, ctypes.c_void_p(0))


@contextmanager
def llama_cpp_subject(path: Path, *, threads: int, context: int = CONTEXT) -> Iterator[LlamaCpp]:
    """A GGUF file in llama.cpp; ``context`` positions for each sequence, at least `CONTEXT`."""
    llama_cpp.llama_backend_init()
    silence()
    settings = llama_cpp.llama_model_default_params()
    settings.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), settings)
    if not model:
        raise LlamaCppError(f"llama.cpp does not load {path}")
    # A context is a multiple of 256 positions.
    positions = math.ceil(max(context, CONTEXT) / 256) * 256
    subject = LlamaCpp(model, threads, positions)
    try:
        yield subject
    finally:
        subject.close()
        llama_cpp.llama_model_free(model)
