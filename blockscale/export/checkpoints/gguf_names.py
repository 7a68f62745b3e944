"""The tensors of a GGUF file under the names that a model of transformers has.

Names: ggml's gguf-py/gguf/tensor_mapping.py. llama.cpp's converter permutes the rows of each head
of `attn_q` and `attn_k` of the architecture "llama" (conversion of rotary halves to pairs); here
whole rows of codes and scales are put back, which changes none of them.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.core.untrusted.names import quoted
from blockscale.export.checkpoints.as_stored import Source
from blockscale.export.checkpoints.checkpoint import Checkpoint
from blockscale.files.metadata import FileError

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # whose values llama.cpp's converter only renames
_PERMUTED = ("llama",)
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
_BLOCK = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")
_COMPUTED = ("rope_freqs.weight",)  # of the rotary positions, which the model's config says


def sources(model: nn.Module, checkpoint: Checkpoint) -> dict[str, Source]:
    """{the model's name: what of the file it is, and the order of its rows}.

    Raises FileError for another architecture, and for a tensor that is not known there.
    """
    metadata: Mapping[str, Any] = checkpoint.metadata
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise FileError(
            f"{checkpoint.path} holds the architecture {quoted(str(architecture))}; loaded into "
            f"models are {', '.join(ARCHITECTURES)}. bs.checkpoint reads its tensors"
        )
    found = {}
    for name in checkpoint:
        if name in _COMPUTED:
            continue
        new = _name(name)
        if new is None:
            raise FileError(f"{checkpoint.path}: {quoted(name)} is no tensor of a {architecture}")
        found[new] = Source(name, _rows(name, architecture, metadata))
    state, prefix = set(model.state_dict()), "model."
    if not found.keys() & state:  # a base model, without its head
        found = {name.removeprefix(prefix): source for name, source in found.items()}
    return found


def _name(name: str) -> str | None:
    """A tensor's name as transformers has it; None if there is none."""
    place, _, last = name.rpartition(".")
    if place in _WHOLE and last in ("weight", "bias"):
        return f"{_WHOLE[place]}.{last}"
    block = _BLOCK.fullmatch(name)
    if block is None or block[2] not in _LAYER:
        return None
    return f"model.layers.{int(block[1])}.{_LAYER[block[2]]}.{block[3]}"


def _rows(name: str, architecture: str, metadata: Mapping[str, Any]) -> Any:
    block = _BLOCK.fullmatch(name)
    if architecture not in _PERMUTED or block is None or block[2] not in ("attn_q", "attn_k"):
        return None
    heads = metadata.get(f"{architecture}.attention.head_count")
    if block[2] == "attn_k":
        heads = metadata.get(f"{architecture}.attention.head_count_kv", heads)
    if type(heads) is not int or heads < 1:
        raise FileError(f"{architecture}.attention.head_count is {heads!r}: a number of heads")
    return partial(_unpermuted, heads)


def _unpermuted(heads: int, rows: int) -> Tensor:
    """Which row of the file each row of the weight is: int64 [rows]."""
    if rows % (2 * heads):
        raise FileError(f"its {rows} rows are no {heads} heads of pairs")
    return torch.arange(rows).reshape(heads, rows // heads // 2, 2).mT.reshape(-1)
