"""The models that are compared, made once in the cache's folder ``benchmarks``.

SmolLM2's weights come as a 4-bit file; the other formats are made from it, so that both sides of
a comparison read the same file. The larger checkpoint is random, as only its shape matters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import gguf
import numpy as np

from caldrix.errors import Refusal
from caldrix.weights.cache import cache_root, locked, prepare, put_in_place, require_space
from caldrix.weights.checkpoint import open_checkpoint
from caldrix.weights.gguf import GgufCheckpoint
from caldrix.weights.names import resolve
from caldrix.weights.progress import Progress

Format = Literal["f32", "bf16", "q8_0", "q4_0", "q4_1", "q4_k_m"]
FORMATS: tuple[Format, ...] = get_args(Format)

_PLAIN = {"f32": gguf.GGMLQuantizationType.F32, "bf16": gguf.GGMLQuantizationType.BF16}
# llama.cpp's numbers of whole-file formats (enum llama_ftype).
_FILE_TYPES = {"q4_0": 2, "q8_0": 7, "q4_k_m": 15}

_QWEN3_SHAPE = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}


def smollm2(file_format: Format, progress: Progress) -> Path:
    """SmolLM2-135M-Instruct as a GGUF file of one of `FORMATS`."""
    source = resolve("smollm2", progress).path
    if file_format == "q4_1":
        return source
    target = _folder() / f"SmolLM2-135M-Instruct.{file_format}.gguf"
    if file_format in _PLAIN:
        kind = _PLAIN[file_format]
        return _made(target, progress, lambda part: _write_plain(source, part, kind))
    plain = smollm2("f32", progress)
    return _made(target, progress, lambda part: _quantize(plain, part, file_format))


def gemma3(progress: Progress) -> Path:
    """Gemma 3 270M as it is published: Q4_K_M."""
    return resolve("gemma3-270m", progress).path


def qwen3_shape(progress: Progress) -> Path:
    """A directory with a random checkpoint of Qwen3-0.6B's shape, in bfloat16."""
    directory = _folder() / "qwen3-0.6b-shape"
    prepare(directory)
    # The config comes last: a directory without it is no model yet.
    _made(directory / "model.safetensors", progress, _write_qwen3)
    _made(
        directory / "config.json", progress, lambda part: part.write_text(json.dumps(_QWEN3_SHAPE))
    )
    return directory


def _folder() -> Path:
    return cache_root() / "benchmarks"


def _made(target: Path, progress: Progress, make: Callable[[Path], object]) -> Path:
    """The file, which ``make`` writes under another name if it isn't there yet."""
    with locked(target, progress):
        if not target.exists():
            progress.note(f"making {target}")
            unfinished = target.with_name(f"{target.name}.part")
            make(unfinished)
            put_in_place(unfinished, target)
    return target


def _write_plain(source: Path, target: Path, kind: gguf.GGMLQuantizationType) -> None:
    """The same model with its matrices in a float format, and its vectors in float32."""
    reader = gguf.GGUFReader(source)
    with open_checkpoint(source) as checkpoint:
        assert isinstance(checkpoint, GgufCheckpoint)
        writer = gguf.GGUFWriter(target, str(checkpoint.metadata["general.architecture"]))
        for key, entry in reader.fields.items():
            if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
                continue
            value = entry.types[0]
            element = entry.types[-1] if value == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, entry.contents(), value, sub_type=element)
        for name, tensor in checkpoint.tensors.items():
            values = np.ascontiguousarray(tensor.to_float32())
            if values.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
                writer.add_tensor(name, values)
            else:
                packed = gguf.quants.quantize(values, kind)
                writer.add_tensor(name, packed, raw_shape=packed.shape, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _quantize(source: Path, target: Path, file_format: Format) -> None:
    """What llama.cpp makes of a float32 file; it puts other types where a row doesn't divide."""
    try:
        import llama_cpp

        from tests.benchmarks.llama_cpp_subject import silence
    except ModuleNotFoundError as error:
        raise Refusal(
            f"llama-cpp-python makes the {file_format} file, and is not installed here; "
            "`just bench-peers` installs it"
        ) from error
    silence()
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype = _FILE_TYPES[file_format]
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), settings)
    if status != 0:
        raise OSError(f"llama.cpp did not write {target}: status {status}")


def _write_qwen3(target: Path) -> None:
    shapes = _qwen3_tensors()
    sizes = [2 * math.prod(shape) for shape in shapes.values()]
    ends = np.cumsum(sizes).tolist()
    header = json.dumps(
        {
            name: {"dtype": "BF16", "shape": shape, "data_offsets": [end - size, end]}
            for (name, shape), size, end in zip(shapes.items(), sizes, ends, strict=True)
        }
    ).encode()
    require_space(target.parent, ends[-1])
    random = np.random.Generator(np.random.PCG64(0))
    with target.open("wb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for shape in shapes.values():
            values = random.standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5)
            # The upper half of a float32 is that number as bfloat16, cut off.
            file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())


def _qwen3_tensors() -> dict[str, tuple[int, ...]]:
    """Names and shapes as the published checkpoint has them."""
    hidden, middle, head_dim = 1024, 3072, 128
    queries, keys = 16 * head_dim, 8 * head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.q_norm": (head_dim,),
        "self_attn.k_norm": (head_dim,),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (middle, hidden),
        "mlp.up_proj": (middle, hidden),
        "mlp.down_proj": (hidden, middle),
    }
    return {
        "model.embed_tokens.weight": (151_936, hidden),
        **{
            f"model.layers.{index}.{part}.weight": shape
            for index in range(28)
            for part, shape in layer.items()
        },
        "model.norm.weight": (hidden,),
    }
