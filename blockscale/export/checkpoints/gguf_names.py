"""The tensors of a GGUF file under the names and shapes that a model of transformers has.

llama.cpp's converter permutes the rows of each head of `attn_q` and `attn_k` of some architectures
(conversion of rotary halves to pairs), stacks experts, and adds to Gemma's norms; here whole rows
of codes and scales are put back, which changes none of them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from blockscale.core.untrusted.names import quoted
from blockscale.export.checkpoints.checkpoint import Checkpoint
from blockscale.export.checkpoints.gguf.families import FAMILIES, Family, of_metadata
from blockscale.export.checkpoints.gguf.tensors import from_gguf
from blockscale.export.checkpoints.regrouped import Regrouped
from blockscale.files.metadata import FileError

_COMPUTED = ("rope_freqs.weight",)  # of the rotary positions, which the model's config says


def as_in_model(model: nn.Module, checkpoint: Checkpoint) -> Checkpoint:
    """The file's tensors as the model has them.

    Raises FileError for another architecture, and for a tensor that is not known there.
    """
    metadata: Mapping[str, Any] = checkpoint.metadata
    name = metadata.get("general.architecture")
    try:
        _, family = of_metadata(metadata)
    except ValueError:
        known = ", ".join(dict.fromkeys(each.arch for each in FAMILIES.values()))
        raise FileError(
            f"{checkpoint.path} holds the architecture {quoted(str(name))}; loaded into models "
            f"are {known}. bs.checkpoint reads its tensors"
        ) from None
    shapes = {n: each.shape for n, each in checkpoint.stored.items() if n not in _COMPUTED}
    heads = _heads(family, metadata, shapes) if family.permuted else {}
    pieces, unknown = from_gguf(shapes, family, heads, modules=True)
    if unknown:
        raise FileError(f"{checkpoint.path}: {quoted(unknown[0])} is no tensor of a {family.arch}")
    state = set(model.state_dict())
    if not pieces.keys() & state:  # a base model, without its head
        pieces = {n.removeprefix(family.prefix): piece for n, piece in pieces.items()}
    return Regrouped(checkpoint, pieces)


def _heads(
    family: Family, metadata: Mapping[str, Any], shapes: Mapping[str, Any]
) -> dict[str, int]:
    """The numbers of heads under the names of config.json."""
    heads = metadata.get(f"{family.arch}.attention.head_count")
    keys = metadata.get(f"{family.arch}.attention.head_count_kv", heads)
    for each in (heads, keys):
        if (type(each) is not int or each < 1) and _of_heads(shapes):
            raise FileError(f"{family.arch}.attention.head_count is {each!r}: a number of heads")
    return {"num_attention_heads": heads or 1, "num_key_value_heads": keys or 1}


def _of_heads(names: Iterable[str]) -> bool:
    return any(".attn_q." in name or ".attn_k." in name for name in names)
