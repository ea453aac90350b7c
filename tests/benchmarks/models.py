"""The models that are compared, made once in the cache's folder ``benchmarks``.

SmolLM2's weights come as a 4-bit file; the other formats are made from it, so that both sides of
a comparison read the same file. The larger checkpoint is random, as only its shape matters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
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
from tests.support.byte_tokenizer import byte_tokenizer

Format = Literal["f32", "bf16", "q8_0", "q4_0", "q4_1", "q4_k_m"]
FORMATS: tuple[Format, ...] = get_args(Format)

_PLAIN = {"f32": gguf.GGMLQuantizationType.F32, "bf16": gguf.GGMLQuantizationType.BF16}
# llama.cpp's numbers of whole-file formats (enum llama_ftype).
_FILE_TYPES = {"q4_0": 2, "q8_0": 7, "q4_k_m": 15}

QWEN3_SHAPE = {
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

DECIDER_WORDS = (
    "Context", "Question", "Options", "Answer", "Proposed", " answer", " Does", " the", " fit",
    " a", " and", " is", " of", " this", " which", " team", " should", " handle", " message",
    " payment", " refund", " delivery", " login", " problem", " customer", " late", " urgent",
)  # fmt: skip
"""Words that are a token each, as in the vocabularies of trained models."""

_DECIDER_CONFIG = {"temperature": 1.03, "neutralize_none": False, "isolated_levels": True}

# As the published checkpoint's config.json has it.
_DECIDER_SHAPE = {
    "model_type": "qwen3_5_text",
    "architectures": ["Qwen3_5ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "vocab_size": 248_320,
    "max_position_embeddings": 262_144,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
    },
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
    _made(
        directory / "model.safetensors",
        progress,
        lambda part: _write_random(part, _qwen3_tensors()),
    )
    _made_json(directory / "config.json", progress, QWEN3_SHAPE)
    return directory


def decider_shape(progress: Progress) -> Path:
    """A directory with a random decider of decider-0.8b's shape, in bfloat16.

    Its tokens are bytes, the words of `DECIDER_WORDS`, and labels.
    """
    directory = _folder() / "decider-0.8b-shape"
    prepare(directory)
    _made(
        directory / "model.safetensors",
        progress,
        lambda part: _write_random(part, _decider_tensors()),
    )
    _made(
        directory / "tokenizer.json",
        progress,
        lambda part: byte_tokenizer(words=DECIDER_WORDS, labels=255).save(str(part)),
    )
    _made_json(directory / "decider_config.json", progress, _DECIDER_CONFIG)
    _made_json(directory / "config.json", progress, _DECIDER_SHAPE)
    return directory


def _folder() -> Path:
    return cache_root() / "benchmarks"


def _made_json(target: Path, progress: Progress, value: object) -> Path:
    return _made(target, progress, lambda part: part.write_text(json.dumps(value)))


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


def _write_random(target: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
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


def _decider_tensors() -> dict[str, tuple[int, ...]]:
    """Names and shapes as the published checkpoint has them."""
    hidden, middle, attended, mixed = 1024, 3584, 8 * 256, 16 * 128
    every: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (middle, hidden),
        "mlp.up_proj.weight": (middle, hidden),
        "mlp.down_proj.weight": (hidden, middle),
    }
    full: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (2 * attended, hidden),
        "self_attn.k_proj.weight": (2 * 256, hidden),
        "self_attn.v_proj.weight": (2 * 256, hidden),
        "self_attn.o_proj.weight": (hidden, attended),
        "self_attn.q_norm.weight": (256,),
        "self_attn.k_norm.weight": (256,),
    }
    linear: dict[str, tuple[int, ...]] = {
        "linear_attn.in_proj_qkv.weight": (3 * mixed, hidden),
        "linear_attn.in_proj_z.weight": (mixed, hidden),
        "linear_attn.in_proj_b.weight": (16, hidden),
        "linear_attn.in_proj_a.weight": (16, hidden),
        "linear_attn.out_proj.weight": (hidden, mixed),
        "linear_attn.conv1d.weight": (3 * mixed, 1, 4),
        "linear_attn.norm.weight": (128,),
        "linear_attn.A_log": (16,),
        "linear_attn.dt_bias": (16,),
    }
    return {
        "model.language_model.embed_tokens.weight": (248_320, hidden),
        **{
            f"model.language_model.layers.{index}.{part}": shape
            for index in range(24)
            for part, shape in (every | (full if index % 4 == 3 else linear)).items()
        },
        "model.language_model.norm.weight": (hidden,),
    }
