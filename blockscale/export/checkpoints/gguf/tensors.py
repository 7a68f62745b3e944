# SPDX-License-Identifier: BSD-3-Clause
"""The tensors of a model of transformers made of a GGUF file's, and the other way round."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from blockscale.core.untrusted import quote
from blockscale.export.checkpoints.checkpoint import Stored
from blockscale.export.checkpoints.gguf.families import FAMILIES, Family, of_metadata
from blockscale.export.checkpoints.regrouped import TensorPiece
from blockscale.files.metadata import FileError

_BLOCK = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")
_EXPERT = re.compile(r"(.+)\.experts\.(\d{1,6})\.(\w+)\.weight")
_STACKS = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}
_COMPUTED = ("rope_freqs.weight",)  # of the rotary positions, which the model's config says
_ROLES = {"gate": "ffn_gate_exps", "up": "ffn_up_exps", "down": "ffn_down_exps"}


def to_gguf(
    names: Iterable[str], family: Family, config: Mapping[str, Any]
) -> tuple[dict[str, TensorPiece], list[str]]:
    """{name in GGUF: how it is made of a model's tensors}, and the names without a place."""
    pieces: dict[str, TensorPiece] = {}
    experts: dict[str, dict[int, str]] = {}
    unknown: list[str] = []
    for name in names:
        place = _block_of(name, family)
        if place is None:
            new_name = _whole(name, family)
            _add(pieces, new_name, name, family, unknown, config)
            continue
        number, rest = place
        of_expert, stack = _EXPERT.fullmatch(rest), rest.removesuffix(".weight").rpartition(".")
        if of_expert is not None and of_expert[3] in family.experts:
            place_of_all = f"blk.{number}.{family.experts[of_expert[3]]}.weight"
            experts.setdefault(place_of_all, {})[int(of_expert[2])] = name
        elif family.experts and stack[0] == "mlp.experts" and stack[2] in _STACKS:
            for i, role in enumerate(_STACKS[stack[2]]):
                half = i if len(_STACKS[stack[2]]) > 1 else None
                pieces[f"blk.{number}.{_ROLES[role]}.weight"] = TensorPiece((name,), half=half)
        else:
            layer, _, last = rest.rpartition(".")
            theirs = family.inside.get(_older(layer, family))
            new_name = f"blk.{number}.{theirs}.{last}" if theirs else None
            _add(pieces, new_name, name, family, unknown, config)
    for name, those in experts.items():
        if sorted(those) != list(range(len(those))):
            unknown += those.values()
            continue
        pieces[name] = TensorPiece(tuple(those[i] for i in range(len(those))), stacked=True)
    return pieces, unknown


def _older(layer: str, family: Family) -> str:
    """Mixtral's router under its name in files; in modules it is the one of others."""
    return layer.replace("mlp.", f"{family.experts_in}.") if layer == "mlp.gate" else layer


def _add(
    pieces: dict[str, TensorPiece],
    new_name: str | None,
    name: str,
    family: Family,
    unknown: list[str],
    config: Mapping[str, Any],
) -> None:
    if new_name is None or not _has_place(new_name, family):
        unknown.append(name)
        return
    if new_name in pieces:
        raise FileError(
            f"{quote(name)} and {quote(pieces[new_name].name)} would both be {quote(new_name)}"
        )
    layer = _layer_of(new_name)
    heads = _heads(layer, config) if family.permuted else 0
    norm = family.addend if layer.endswith("norm") else 0.0
    row = False if layer == "ffn_gate_inp_shexp" else None
    pieces[new_name] = TensorPiece(
        (name,), heads=heads, addend=norm, transpose=layer in family.transposes, row=row
    )


def _has_place(name: str, family: Family) -> bool:
    """Whether llama.cpp asks for it: weights, and biases of layers that have them there."""
    last = name.rpartition(".")[2]
    return last == "weight" or (last == "bias" and _layer_of(name) in family.biases)


def _layer_of(name: str) -> str:
    match = _BLOCK.fullmatch(name)
    return match[2] if match else name.rpartition(".")[0]


def _block_of(name: str, family: Family) -> tuple[int, str] | None:
    """The number of a block, and the rest of the name; None for what is in none."""
    start = family.block.partition("{}")[0]
    short = start.removeprefix(family.prefix)
    for each in (start, short):  # files of a base model have no prefix
        if name.startswith(each):
            number, _, rest = name.removeprefix(each).partition(".")
            if number.isascii() and number.isdigit() and len(number) <= 6:
                return int(number), rest
    return None


def _whole(name: str, family: Family) -> str | None:
    layer, _, last = name.rpartition(".")
    for each in (layer, family.prefix + layer):
        if each in family.whole:
            return f"{family.whole[each]}.{last}"
    return None


def _heads(layer: str, config: Mapping[str, Any]) -> int:
    """How many heads the rows of q or k are of; 0 for other layers."""
    if layer == "attn_q":
        return int(config["num_attention_heads"])
    if layer == "attn_k":
        return int(config.get("num_key_value_heads") or config["num_attention_heads"])
    return 0


def from_gguf(
    shapes: Mapping[str, tuple[int, ...]],
    family: Family,
    config: Mapping[str, Any],
    modules: bool = False,
) -> tuple[dict[str, TensorPiece], list[str]]:
    """{name in transformers: how it is made of a file's tensors}, and the names without a place.

    shapes: {name in GGUF: its shape}; modules: as modules have the tensors of experts (stacked, the
    rows of gate and up together), not files (each expert its own)
    """
    pieces: dict[str, TensorPiece] = {}
    unknown = []
    whole = {theirs: ours for ours, theirs in family.whole.items()}
    inside = {theirs: ours for ours, theirs in family.inside.items()}
    experts = {theirs: ours for ours, theirs in family.experts.items()}
    for name, shape in shapes.items():
        block = _BLOCK.fullmatch(name)
        layer, last = (block[2], block[3]) if block else name.rpartition(".")[::2]
        start = family.block.format(int(block[1])) if block else ""
        if block and layer in experts and last == "weight" and len(shape) == 3:
            if modules:
                _stacked(pieces, start, block[1], layer)
                continue
            where = f"{start}{family.experts_in}.experts"
            for i in range(shape[0]):
                pieces[f"{where}.{i}.{experts[layer]}.weight"] = TensorPiece((name,), expert=i)
            continue
        table = inside if block else whole
        if layer not in table or not _has_place(name, family):
            unknown.append(name)
            continue
        ours = table[layer].replace("block_sparse_moe.", "mlp." if modules else "block_sparse_moe.")
        pieces[f"{start}{ours}.{last}"] = _back(name, layer, family, config)
    return pieces, unknown


def _back(name: str, layer: str, family: Family, config: Mapping[str, Any]) -> TensorPiece:
    """A tensor of transformers from that of a file."""
    heads = _heads(layer, config) if family.permuted else 0
    norm = family.addend if layer.endswith("norm") else 0.0
    row = True if layer == "ffn_gate_inp_shexp" else None
    return TensorPiece(
        (name,), heads=-heads, addend=-norm, transpose=layer in family.transposes, row=row
    )


def _stacked(pieces: dict[str, TensorPiece], start: str, number: str, layer: str) -> None:
    """The experts of a block as its module has them."""
    if layer == "ffn_down_exps":
        pieces[f"{start}mlp.experts.down_proj"] = TensorPiece((f"blk.{number}.{layer}.weight",))
        return
    both = tuple(f"blk.{number}.ffn_{each}_exps.weight" for each in ("gate", "up"))
    pieces[f"{start}mlp.experts.gate_up_proj"] = TensorPiece(both)


def pieces_in_model(
    model: nn.Module, path: Path, metadata: Mapping[str, Any], stored: Mapping[str, Stored]
) -> dict[str, TensorPiece]:
    """{name in a model of transformers: how it is made of the file's tensors}.

    llama.cpp's converter permutes the rows of each head of `attn_q` and `attn_k` of some
    architectures (conversion of rotary halves to pairs), stacks experts, and adds to Gemma's norms;
    here whole rows of codes and scales are put back, which changes none of them.

    Raises FileError for another architecture, and for a tensor that is not known there.
    """
    name = metadata.get("general.architecture")
    try:
        _, family = of_metadata(metadata)
    except ValueError:
        choices = ", ".join(dict.fromkeys(each.arch for each in FAMILIES.values()))
        raise FileError(
            f"{path} holds the architecture {quote(str(name))}; only {choices} can be loaded "
            "into a model. bs.checkpoint reads its tensors"
        ) from None
    shapes = {n: each.shape for n, each in stored.items() if n not in _COMPUTED}
    heads = _numbers_of_heads(family, metadata, shapes) if family.permuted else {}
    pieces, unknown = from_gguf(shapes, family, heads, modules=True)
    if unknown:
        raise FileError(f"{path}: {quote(unknown[0])} is not a tensor of a {family.arch} model")
    state = set(model.state_dict())
    if not pieces.keys() & state:  # a base model, without its head
        pieces = {n.removeprefix(family.prefix): piece for n, piece in pieces.items()}
    return pieces


def _numbers_of_heads(
    family: Family, metadata: Mapping[str, Any], shapes: Mapping[str, Any]
) -> dict[str, int]:
    """The numbers of heads under the names of config.json."""
    heads = metadata.get(f"{family.arch}.attention.head_count")
    keys = metadata.get(f"{family.arch}.attention.head_count_kv", heads)
    for each in (heads, keys):
        if (type(each) is not int or each < 1) and _of_heads(shapes):
            raise FileError(
                f"{family.arch}.attention.head_count is {each!r}, expected a positive integer"
            )
    return {"num_attention_heads": heads or 1, "num_key_value_heads": keys or 1}


def _of_heads(names: Iterable[str]) -> bool:
    return any(".attn_q." in name or ".attn_k." in name for name in names)
