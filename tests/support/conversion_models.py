# SPDX-License-Identifier: BSD-3-Clause
"""Small models as checkpoints: what tests convert."""

from pathlib import Path

import torch
from torch import Tensor

import blockscale as bs
from blockscale.export.conversion.directory import Directory
from blockscale.export.writers import PlannedTensor, writer_of

H, INNER, VOCABULARY = 256, 512, 32
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}
SHAPES = {
    "self_attn.q_proj": (H, H),
    "self_attn.k_proj": (H // 2, H),
    "self_attn.v_proj": (H // 2, H),
    "self_attn.o_proj": (H, H),
    "mlp.gate_proj": (INNER, H),
    "mlp.up_proj": (INNER, H),
    "mlp.down_proj": (H, INNER),
}


def tensors(fmt: str, embedding: str | None = None, seed: int = 0) -> dict:
    """The tensors of a model of one layer, whose matrices are in `fmt`."""
    random = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    found = {
        f"model.layers.0.{name}.weight": bs.quantize(numbers(*shape) * 0.05, fmt)
        for name, shape in SHAPES.items()
    }
    for norm in ("input_layernorm", "post_attention_layernorm"):
        found[f"model.layers.0.{norm}.weight"] = numbers(H).to(torch.bfloat16)
    found["model.norm.weight"] = numbers(H).to(torch.bfloat16)
    words = numbers(VOCABULARY, H)
    found["model.embed_tokens.weight"] = (
        bs.quantize(words, embedding) if embedding else words.to(torch.bfloat16)
    )
    found["lm_head.weight"] = numbers(VOCABULARY, H).to(torch.bfloat16)
    return found


def write(path: Path, held: dict, to: str = "blockscale", config: dict | None = None) -> Path:
    """A directory of these tensors."""
    planned = [
        PlannedTensor(
            n, tuple(t.shape), getattr(t, "format", None), getattr(t, "dtype", torch.float32)
        )
        for n, t in held.items()
    ]
    path.mkdir()
    made = Directory(path, writer_of(to), planned, CONFIG if config is None else config)
    for name, tensor in held.items():
        made.write(name, tensor)
    made.close()
    return path


def value(tensor: object) -> Tensor:
    """Its values in float32."""
    return tensor.dequantize() if isinstance(tensor, bs.QTensor) else tensor.to(torch.float32)
