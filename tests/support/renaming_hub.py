# SPDX-License-Identifier: BSD-3-Clause
"""Tiny models of transformers, from configs, and their directories as a hub holds them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

TEXT = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL = {"num_local_experts": 3, "num_experts_per_tok": 2}
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 16, "patch_size": 8, "num_channels": 3, "projection_dim": 16,
}  # fmt: skip

Config = Callable[[], Any]


def _config(name: str, **values: Any) -> Config:
    return lambda: getattr(transformers, name)(**values)


def _detr() -> Any:
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic",
        out_features=["stage2"],
    )  # fmt: skip
    return transformers.DetrConfig(
        use_timm_backbone=False, backbone_config=backbone, backbone=None,
        use_pretrained_backbone=False, d_model=32, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=48, num_queries=4,
    )  # fmt: skip


def _llava() -> Any:
    return transformers.LlavaConfig(
        vision_config={"model_type": "clip_vision_model", **VISION},
        text_config={"model_type": "llama", **TEXT},
    )


def _qwen2_vl() -> Any:
    rope = {"type": "mrope", "mrope_section": [2, 3, 3], "rope_theta": 1e4, "rope_type": "default"}
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "patch_size": 8}
    return transformers.Qwen2VLConfig(
        text_config={**TEXT, "rope_parameters": rope, "rope_scaling": rope}, vision_config=vision
    )


def _gemma3() -> Any:
    vision = {key: value for key, value in VISION.items() if key != "projection_dim"}
    return transformers.Gemma3Config(
        text_config=TEXT, vision_config=vision, mm_tokens_per_image=4, image_token_index=90,
        boi_token_index=91, eoi_token_index=92,
    )  # fmt: skip


def _clip() -> Any:
    text = {
        key: value for key, value in TEXT.items() if key not in ("num_key_value_heads", "head_dim")
    }
    return transformers.CLIPConfig(
        text_config={**text, "projection_dim": 16}, vision_config=VISION, projection_dim=16
    )


MLA = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 16, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
    "num_experts_per_tok": 2, "num_key_value_heads": 2, "moe_intermediate_size": 16,
    "first_k_dense_replace": 0, "n_shared_experts": 1,
}  # fmt: skip
BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 96,
}
GPT2 = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 96, "n_positions": 32}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 1, "num_heads": 2, "vocab_size": 96}
FALCON = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 96,
    "ffn_hidden_size": 48,
}
LLAMA4 = {"num_local_experts": 3, "num_experts_per_tok": 1, "intermediate_size_mlp": 48}

MODELS: dict[str, tuple[str, Config]] = {
    "mixtral": ("MixtralForCausalLM", _config("MixtralConfig", **TEXT, **LOCAL)),
    "qwen3_moe": ("Qwen3MoeForCausalLM", _config("Qwen3MoeConfig", **TEXT, **EXPERTS)),
    "deepseek_v3": ("DeepseekV3ForCausalLM", _config("DeepseekV3Config", **(TEXT | MLA))),
    "olmoe": ("OlmoeForCausalLM", _config("OlmoeConfig", **TEXT, **EXPERTS)),
    "granitemoe": ("GraniteMoeForCausalLM", _config("GraniteMoeConfig", **TEXT, **LOCAL)),
    "gpt_oss": ("GptOssForCausalLM", _config("GptOssConfig", **TEXT, **LOCAL)),
    "llama4": ("Llama4ForCausalLM", _config("Llama4TextConfig", **(TEXT | LLAMA4))),
    "detr": ("DetrForObjectDetection", _detr),
    "llava": ("LlavaForConditionalGeneration", _llava),
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", _qwen2_vl),
    "gemma3": ("Gemma3ForConditionalGeneration", _gemma3),
    "falcon": ("FalconForCausalLM", _config("FalconConfig", **FALCON)),
    "llama": ("LlamaForCausalLM", _config("LlamaConfig", **TEXT)),
    "gpt2": ("GPT2LMHeadModel", _config("GPT2Config", **GPT2)),
    "bert": ("BertForMaskedLM", _config("BertConfig", **BERT)),
    "t5": ("T5ForConditionalGeneration", _config("T5Config", **T5)),
    "clip": ("CLIPModel", _clip),
}  # fmt: skip


def build(name: str, seed: int = 0) -> nn.Module:
    """The float model; `seed` decides all of its parameters, also those that begin as constants."""
    kind, config = MODELS[name]
    model: nn.Module = getattr(transformers, kind)(config()).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def save(model: Any, path: Path) -> Path:
    """Its directory, as `save_pretrained` writes it: in the hub's names."""
    model.save_pretrained(path)
    return path
