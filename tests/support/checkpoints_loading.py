# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/export/checkpoints/test_loading.py: `GPTQ`, `llama`, `RECORDED`, ….
"""

import pathlib

import torch
from safetensors.torch import load_file
from torch import nn

from tests.export.checkpoints import packing

RECORDED = pathlib.Path(__file__).parents[1] / "recorded"


BNB = load_file(RECORDED / "layouts_bitsandbytes.safetensors")


NF4 = BNB["nf4 normal|stored|a.weight.quant_map"]


DYNAMIC = BNB["nf4 normal|stored|a.weight.nested_quant_map"]


SIZES = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


def llama(tied: bool = False) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied)).eval()


def stored_llama(model: nn.Module, producer: str) -> dict[str, torch.Tensor]:
    """What a producer would write of it, its linear layers anew; the model gets their values."""
    tensors = {name: t.clone() for name, t in model.state_dict().items() if "lm_head" not in name}
    tensors["lm_head.weight"] = model.lm_head.weight.detach().clone()
    for name, layer in model.model.named_modules(prefix="model"):
        if not isinstance(layer, nn.Linear):
            continue
        shape = tuple(layer.weight.shape)
        if producer == "gptq":
            parts, values = packing.gptq(shape, 4, 32, ordered="mlp" in name)
            del tensors[f"{name}.weight"]
            tensors |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
            tensors[f"{name}.bias"] = torch.zeros(shape[0])
        else:
            parts, values = packing.nf4(name, shape, NF4, DYNAMIC if "mlp" in name else None)
            tensors |= parts
        layer.weight.data.copy_(values)
    return tensors


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"}
