"""transformers as a `Subject`: the same weights, in a dtype of torch's, on the CPU."""

from __future__ import annotations

import inspect
from pathlib import Path

import torch
import transformers

from caldrix.models.lane import TokenIds
from caldrix.weights.tensor import Float32


class Transformers:
    """A causal language model that transformers read from a GGUF file."""

    def __init__(self, path: Path, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.name = f"transformers ({transformers.__version__})"
        # In float32 a plain file's matrices become ordinary ones, whatever transformers can pack.
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, local_files_only=True
        )
        self._model = loaded.to({"f32": torch.float32, "bf16": torch.bfloat16}[dtype]).eval()
        self.vocab_size = int(self._model.config.vocab_size)
        # The argument's name changed in 5.x.
        known = inspect.signature(self._model.forward).parameters
        self._cache_argument = "cache" if "cache" in known else "past_key_values"
        self._cache = transformers.DynamicCache(config=self._model.config)

    def start(self, prompts: TokenIds, wanted: int = 1) -> Float32:
        """See `Subject.start`; all prompts in one batch."""
        self._cache = transformers.DynamicCache(config=self._model.config)
        return self._compute(prompts, wanted)

    def decode(self, tokens: TokenIds) -> Float32:
        """See `Subject.decode`."""
        return self._compute(tokens[:, None], 1)

    def _compute(self, tokens: TokenIds, wanted: int) -> Float32:
        with torch.inference_mode():
            output = self._model(
                input_ids=torch.from_numpy(tokens),
                use_cache=True,
                logits_to_keep=wanted,
                **{self._cache_argument: self._cache},
            )
        logits: Float32 = output.logits.float().reshape(-1, self.vocab_size).numpy()
        return logits
