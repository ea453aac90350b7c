"""Descriptions that contradict their tensors, or ask for what the families don't do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from caldrix.models.fields import Fields, UnsupportedModel
from caldrix.models.program import RmsNorm
from caldrix.models.registry import BoundProgram, bind
from caldrix.models.windows import layer_windows
from caldrix.weights.checkpoint import open_checkpoint
from tests.references import tiny
from tests.support.as_gguf import write_gguf

LONG = "x" * 100_000
HUGE = "1" + "0" * 400
LLAMA3 = (
    '{"rope_type": "llama3", "factor": %s, "low_freq_factor": 1, "high_freq_factor": %s,'
    ' "original_max_position_embeddings": 32}'
)


def bound(path: Path) -> BoundProgram:
    with open_checkpoint(path) as checkpoint:
        return bind(checkpoint)


def with_config(name: str, changed: Mapping[str, str | None], directory: Path) -> Path:
    """A tiny checkpoint whose config.json has other values, as JSON text, or lacks them."""
    tiny.write_checkpoint(name, directory)
    config = {key: json.dumps(value) for key, value in tiny.CONFIGS[name].items()}
    members = ((key, text) for key, text in {**config, **changed}.items() if text is not None)
    body = ", ".join(f"{json.dumps(key)}: {text}" for key, text in members)
    (directory / "config.json").write_text(f"{{{body}}}")
    return directory


def with_tensors(name: str, added: Mapping[str, np.ndarray], directory: Path) -> Path:
    tiny.write_checkpoint(name, directory)
    save_file({**tiny.weights(name), **added}, directory / "model.safetensors")
    return directory


def assert_refused(path: Path, *expected: str) -> None:
    with pytest.raises(UnsupportedModel) as refusal:
        bound(path)
    message = str(refusal.value)
    assert len(message) < 400
    for part in expected:
        assert part in message


@pytest.mark.parametrize(
    ("name", "changed", "expected"),
    [
        ("llama", {"num_hidden_layers": "1000000000"}, "describes 1000000000 layers, but"),
        ("llama", {"num_hidden_layers": "2"}, "describes 2 layers, but the tensors are of 3"),
        ("qwen3", {"num_hidden_layers": HUGE}, "num_hidden_layers is 1000"),
        ("gemma3", {"num_hidden_layers": "10000000"}, "10000000 layers, but the tensors are of 7"),
        ("gemma3", {"head_dim": "1000000000"}, "q_proj.weight has shape [64, 48]"),
        ("llama", {"num_attention_heads": "1000000000"}, "q_proj.weight has shape [64, 48]"),
        ("llama", {"vocab_size": "1000000000"}, "embed_tokens.weight has shape [96, 48]"),
        ("llama", {"hidden_size": "1000000000"}, "[96, 1000000000]"),
        ("llama", {"intermediate_size": "1000000000"}, "gate_proj.weight has shape [80, 48]"),
        ("llama", {"max_position_embeddings": HUGE}, "max_position_embeddings is 1000"),
        ("llama", {"num_attention_heads": "3"}, "3 attention heads can't share 2"),
        ("llama", {"head_dim": "15"}, "heads of 15 dimensions"),
        ("llama", {"rms_norm_eps": HUGE}, "rms_norm_eps is 1000"),
        ("llama", {"rms_norm_eps": "1e999"}, "rms_norm_eps is inf, not a positive number"),
        ("llama", {"rope_theta": "1" + "0" * 309}, "rope_theta is 1000"),
        ("llama", {"rope_theta": "1e-320"}, "rope_theta is 1e-320, not a number of at least 1"),
        ("gemma3-early", {"rope_local_base_freq": "1e999"}, "rope_local_base_freq is inf"),
        ("gemma3", {"query_pre_attn_scalar": "1e999"}, "query_pre_attn_scalar is inf"),
        ("llama", {"rope_scaling": LLAMA3 % ("8", "1")}, "high_freq_factor 1 is not above"),
        ("llama", {"rope_scaling": LLAMA3 % ("0", "4")}, "factor is 0, not a number of at least 1"),
        ("llama", {"num_local_experts": "8"}, "num_local_experts is 8, which is not supported"),
        ("qwen3", {"num_experts": "128"}, "num_experts is 128, which is not supported"),
        ("llama", {"hidden_act": f'"{LONG}"'}, "hidden_act is 'xxx"),
        ("llama", {"model_type": f'"{LONG}"'}, "models are not supported"),
        ("llama-biased", {"mlp_bias": "false"}, "has the tensor model.layers.0.mlp."),
        ("qwen2-sliding", {"sliding_window": None}, "lacks sliding_window"),
        ("qwen3_5", {"head_dim": "1000000000"}, "q_proj.weight has shape [128, 48]"),
        ("qwen3_5", {"num_attention_heads": "8"}, "should be [256, 48]"),
        ("qwen3_5", {"linear_key_head_dim": "1000000000"}, "in_proj_qkv.weight has shape [96, 48]"),
        ("qwen3_5", {"linear_conv_kernel_dim": "5"}, "conv1d.weight has shape [96, 1, 4]"),
        ("qwen3_5", {"linear_num_key_heads": "3"}, "2 value heads of linear attention can't share"),
        ("qwen3_5", {"full_attention_interval": "5"}, "none of its 4 layers is one of full"),
        ("qwen3_5", {"full_attention_interval": "2"}, "lacks the tensor model.layers.1.self_attn"),
        ("qwen3_5", {"layer_types": '["full_attention"]'}, "has 1 entries for 4 layers"),
        (
            "qwen3_5",
            {"layer_types": '["linear_attention", "full_attention", "sliding_attention", "x"]'},
            "layer type 'sliding_attention' is not supported",
        ),
        ("qwen3", {"layer_types": '["linear_attention", "x", "x"]'}, "type 'linear_attention' is"),
        ("qwen3_5", {"attn_output_gate": "false"}, "attn_output_gate is False, which is not"),
        ("qwen3_5", {"attn_output_gate": "1"}, "attn_output_gate is 1, which is not"),
        (
            "qwen3_5",
            {"model_type": '"qwen3_5"', "text_config": '{"model_type": "llama"}'},
            "text_config: model_type is 'llama', which is not supported",
        ),
        (
            "qwen3_5",
            {
                "model_type": '"qwen3_5"',
                "tie_word_embeddings": "false",
                "text_config": '{"model_type": "qwen3_5_text", "tie_word_embeddings": true}',
            },
            "tie_word_embeddings is False, and True in text_config",
        ),
        ("qwen3_5", {"hidden_act": '"relu"'}, "hidden_act is 'relu', which is not supported"),
        (
            "qwen3_5",
            {"rope_parameters": '{"partial_rotary_factor": 0.2}'},
            "partial_rotary_factor would turn 3.2 of 16 dimensions",
        ),
        (
            "qwen3_5",
            {"rope_parameters": '{"partial_rotary_factor": 1.5}'},
            "partial_rotary_factor would turn 24 of 16 dimensions",
        ),
        (
            "qwen3",
            {"rope_parameters": '{"partial_rotary_factor": 0.5}'},
            "partial_rotary_factor is 0.5, which is not supported",
        ),
    ],
)
def test_a_config_is_refused_by_name(
    name: str, changed: Mapping[str, str | None], expected: str, tmp_path: Path
) -> None:
    assert_refused(with_config(name, changed, tmp_path), tmp_path.name, expected)


@pytest.mark.parametrize(
    ("name", "changed", "expected"),
    [
        ("llama", {"llama.block_count": 10**9}, "describes 1000000000 layers"),
        (
            "qwen2",
            {"qwen2.attention.key_length": 10**9, "qwen2.attention.value_length": 10**9},
            "blk.0.attn_q.weight has shape [48, 48]",
        ),
        ("llama", {"llama.attention.head_count_kv": 3}, "4 attention heads can't share 3"),
        ("llama", {"llama.expert_count": 8}, "llama.expert_count is 8, which is not supported"),
        ("llama", {"llama.rope.scaling.factor": float("inf")}, "llama.rope.scaling.factor is inf"),
        ("llama", {"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn' is not supported"),
        ("llama", {"general.architecture": LONG}, "models are not supported"),
        ("qwen3_5", {"qwen35.ssm.inner_size": 33}, "ssm.inner_size 33 does not divide into 2"),
        ("qwen3_5", {"qwen35.ssm.state_size": 8}, "attn_qkv.weight has shape [96, 48]"),
        ("qwen3_5", {"qwen35.rope.dimension_count": 18}, "rope.dimension_count 18 is no number"),
        ("qwen3_5", {"qwen35.nextn_predict_layers": 4}, "nextn_predict_layers 4 leaves none of 4"),
    ],
)
def test_gguf_metadata_is_refused_by_name(
    name: str, changed: Mapping[str, int | float | str], expected: str, tmp_path: Path
) -> None:
    assert_refused(write_gguf(name, tmp_path / "tiny.gguf", changed=changed), "tiny.gguf", expected)


@pytest.mark.parametrize(
    "tensor", ["output.bias", "blk.1.attn_q.bias", "blk.3.attn_q.weight", "v.patch_embd.weight"]
)
def test_a_gguf_tensor_that_would_go_unread_is_refused(tensor: str, tmp_path: Path) -> None:
    added = {tensor: np.ones(64, np.float32)}
    path = write_gguf("llama", tmp_path / "tiny.gguf", added=added)
    assert_refused(path, f"tiny.gguf has the tensor {tensor}, which")


def test_rope_factors_must_be_positive(tmp_path: Path) -> None:
    factors = np.array([1, 2, 0, 4, 1, 1], np.float32)
    path = write_gguf("llama-biased", tmp_path / "tiny.gguf", added={"rope_freqs.weight": factors})
    assert_refused(path, "rope_freqs.weight has values that are no positive numbers")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("llama", "model.layers.0.mlp.gate_proj.weight_scale"),
        ("llama", "vision_tower.encoder.layers.0.norm.weight"),
        ("qwen3", "model.layers.1.self_attn.q_proj.bias"),
        ("qwen3", "language_model.model.embed_tokens.weight"),
        ("qwen3", LONG),
    ],
)
def test_a_safetensors_tensor_that_would_go_unread_is_refused(
    name: str, tensor: str, tmp_path: Path
) -> None:
    path = with_tensors(name, {tensor: np.ones(64, np.float32)}, tmp_path)
    assert_refused(path, f"has the tensor {tensor[:60]}")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        ("qwen3", "lm_head.weight"),
        ("qwen3", "mtp.layers.0.input_layernorm.weight"),
        ("gemma3", "vision_tower.vision_model.post_layernorm.weight"),
        ("gemma3", "model.multi_modal_projector.mm_soft_emb_norm.weight"),
        ("qwen3_5", "model.visual.blocks.0.attn.qkv.weight"),
        ("qwen3_5", "mtp.fc.weight"),
    ],
)
def test_harmless_tensors_may_go_unread(name: str, tensor: str, tmp_path: Path) -> None:
    weights = bound(with_tensors(name, {tensor: np.ones(64, np.float32)}, tmp_path)).weights
    assert {used.name for used in weights.values()} == set(tiny.weights(name))


def test_the_epsilon_of_norms_has_a_default(tmp_path: Path) -> None:
    for name in ("llama", "qwen2", "qwen3", "gemma3", "qwen3_5"):
        operations = bound(with_config(name, {"rms_norm_eps": None}, tmp_path)).program.operations
        assert {op.eps for op in operations if isinstance(op, RmsNorm)} == {1e-6}


@pytest.mark.parametrize(
    ("full", "expected"), [({"max_window_layers": 0}, (9,) * 30), ({}, (None,) * 28 + (9, 9))]
)
def test_window_layers_may_be_none_or_left_out(
    full: Mapping[str, object], expected: tuple[int | None, ...]
) -> None:
    config = Fields("config.json", {"use_sliding_window": True, "sliding_window": 9, **full})
    assert layer_windows(config, 30) == expected
