# SPDX-License-Identifier: BSD-3-Clause
"""compressed-tensors: llm-compressor, vLLM, RedHat AI (0.20.0: compressors/, quantization/).

Told by `quant_method`, or by names that end in `.weight_packed`. Bits come from the shapes; what
these do not tell (codes of 7 bits in the packing of 2025, groups that do not divide a row) from the
configuration of the module's group.
"""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from blockscale.core.pack import pack, unpack
from blockscale.core.parse import parse
from blockscale.core.untrusted_patterns import full_match
from blockscale.export.checkpoints.assembling import (
    BYTES,
    FLOATS,
    assemble,
    block_of,
    columns,
    flip,
    little_endian,
    trim,
)
from blockscale.export.checkpoints.layouts import Input, Kinds, LayoutTensors, Parts, Read, Weight
from blockscale.files.metadata import FileError
from blockscale.ops.tensor import QTensor

# Which group of a compressed-tensors configuration a module is of, and what it says of weights.

Arguments = Mapping[str, Any]  # of a group's weights: num_bits, group_size, strategy, …


def groups_of(config: Mapping[str, Any], of: str = "weights") -> list[tuple[list[str], Arguments]]:
    """(targets, what is said of weights, or of `of`) of each group. Raises FileError for other
    JSON."""
    value = config.get("config_groups", {})
    if not isinstance(value, dict):
        raise FileError("config_groups of the quantization_config is not a JSON object")
    groups = []
    for name, group in value.items():
        weights = group.get(of) if isinstance(group, dict) else None
        targets = group.get("targets") if isinstance(group, dict) else None
        if not isinstance(targets, list) or not isinstance(weights or {}, dict):
            raise FileError(f"group {name!r} of the quantization_config has no targets or weights")
        groups.append(([each for each in targets if isinstance(each, str)], weights or {}))
    return groups


def arguments(module: str, groups: list[tuple[list[str], Arguments]]) -> list[Arguments]:
    """The arguments that groups have for a module's weight: first of groups that name the module,
    then of those that name its class. Where there are several, the module's tensors decide.
    """
    by_name = [weights for targets, weights in groups if any(_names(t, module) for t in targets)]
    by_class = [w for targets, w in groups if any(_is_class(t) for t in targets)]
    return by_name + [each for each in by_class if all(each is not other for other in by_name)]


def _names(target: str, module: str) -> bool:
    if not target.startswith("re:"):
        return target == module
    try:
        return full_match(f"(?:{target[3:]}).*", module)  # re.match: a beginning is enough
    except ValueError as error:
        raise FileError(f"a target of the quantization_config: {error}") from None


def _is_class(target: str) -> bool:
    return not target.startswith("re:") and "." not in target


def number(arguments: list[Arguments], key: str) -> list[int]:
    """The whole numbers that groups give for a key."""
    return [value for each in arguments if type(value := each.get(key)) is int]


# compressed-tensors' pack-quantized: codes of 1 to 8 bits in int32 words along each row.
#
# Stored is code + 2^(bits-1). Zero points lie likewise, but along the rows: [words, groups].
# Releases of 2025 put 32 // bits codes in a word; since 2026 codes are one stream over all words.

_WORD = 32
Shape = tuple[int, ...]


def integers(
    parts: Mapping[str, str], kinds: Kinds, small: Mapping[str, Tensor], groups: list[Arguments]
) -> Weight:
    """A weight of which `parts` are stored; small: its weight_shape and weight_g_idx, read."""
    words, shape = kinds[parts["codes"]][1], _shape(parts, small)
    if shape is None or len(shape) != len(words) or shape[:-1] != words[:-1]:
        return _unread(parts, words, f"its weight_shape does not match its codes {list(words)}")
    bits = _bits(shape, words, number(groups, "num_bits"))
    if not bits:
        return _unread(parts, shape, f"no width from 1 to 8 bits fills {words[-1]} words")
    dense = _dense(shape, words, bits) is True
    dtype, scale = kinds.get(parts.get("scale", ""), (None, ()))
    group = next(iter(number(groups, "group_size")), 0)
    block = block_of(shape, scale, group)
    if dtype not in FLOATS or block is None:
        return _unread(parts, shape, f"its scales are {dtype} {list(scale)}, which match no block")
    asym = "zero_point" in parts
    element = f"uint{bits}" if asym or bits == 1 else f"int{bits}"  # there is no int1
    spelling = f"{element}:{block}:{FLOATS[dtype]}" + (":full" if element[0] == "i" else ":asym")
    order = _order(parts, small, shape[-1])
    decode = partial(_decode_integers, spelling, shape, bits, dense)
    kind = f"pack-quantized int{bits}" + ("" if dense else ", whole codes in each word")
    return Weight(
        kind, shape, parts, str(parse(spelling)), decode=decode,
        order=None if order is None else lambda _: order,
    )  # fmt: skip


def _shape(parts: Mapping[str, str], small: Mapping[str, Tensor]) -> Shape | None:
    stored = small.get(parts.get("shape", ""))
    if stored is None or stored.dtype.is_floating_point or stored.ndim != 1:
        return None
    shape = tuple(int(n) for n in stored.tolist())
    return shape if len(shape) > 1 and all(0 < n < 2**40 for n in shape) else None


def _bits(shape: Shape, words: Shape, numbers: list[int]) -> int:
    """The width that fills such words: one of those told, else one of a dense stream; or 0."""
    fits = {bits: _dense(shape, words, bits) for bits in (*numbers, *range(1, 9))}
    by_rank = [bits for bits in numbers if fits[bits] is not None]
    by_rank += [bits for bits in range(1, 9) if fits[bits]]
    by_rank += [bits for bits in range(1, 9) if fits[bits] is False]
    return next(iter(by_rank), 0)


def _dense(shape: Shape, words: Shape, bits: int) -> bool | None:
    """Whether rows of such codes are one stream; False if each word has whole codes; or None."""
    if not 1 <= bits <= 8:
        return None
    if words[-1] == -(-shape[-1] * bits // _WORD):
        return True
    return False if words[-1] == -(-shape[-1] // (_WORD // bits)) else None


def _unread(parts: Mapping[str, str], shape: Shape, reason: str) -> Weight:
    return Weight("pack-quantized", shape, parts, None, reason)


def _order(parts: Mapping[str, str], small: Mapping[str, Tensor], size: int) -> Tensor | None:
    """The columns in the order in which they share scales; None if that is theirs."""
    places = small.get(parts.get("order", ""))
    if places is None or places.numel() != size or places.dtype.is_floating_point:
        return None
    if bool((places.flatten() == -1).all()):  # not initialized: no order
        return None
    order = places.flatten().argsort(stable=True)
    return None if torch.equal(order, torch.arange(size)) else order


def _decode_integers(spelling: str, shape: Shape, bits: int, dense: bool, parts: Parts) -> QTensor:
    fmt = parse(spelling)
    rows = _stream(parts["codes"], bits, shape[-1]) if not dense else little_endian(parts["codes"])
    signed = fmt.element.name.startswith("int")
    codes = flip(rows, fmt.element, shape[-1]) if signed else trim(rows, fmt.element, shape[-1])
    order = _order({"order": "order"}, parts, shape[-1])
    if order is not None:
        codes = columns(codes, fmt, shape[-1], order)
    own_parts = {"codes": codes, "scale": parts["scale"]}
    if fmt.asym:
        own_parts["zero_point"] = _zeros(parts, bits, dense, fmt.stored(shape)["scale"][1])
    return assemble(spelling, shape, own_parts)


def _zeros(parts: Parts, bits: int, dense: bool, shape: Shape) -> Tensor:
    if "zero_point" not in parts:
        return torch.full(shape, 1 << (bits - 1), dtype=torch.int32)
    stored = parts["zero_point"]
    if stored.dtype != torch.int32:  # whole numbers around 0
        return stored.to(torch.int32) + (1 << (bits - 1))
    by_row = stored.mT.contiguous()  # [groups, words]: rows of the weight lie in the words
    count = shape[-2]
    rows = little_endian(by_row) if dense else _stream(by_row, bits, count)
    element = parse(f"uint{bits}:tensor:fp32").element
    expected = -(-count * bits // 8)
    if rows.shape[-1] < expected or prod(by_row.shape[:-1]) * count != prod(shape):
        raise ValueError(
            f"its zero points have shape {list(stored.shape)}, expected that of the scales, "
            f"{list(shape)}"
        )
    codes = trim(rows, element, count)
    return unpack(codes, element, (*by_row.shape[:-1], count)).mT.to(torch.int32)


def _stream(words: Tensor, bits: int, size: int) -> Tensor:
    """Words with 32 // bits whole codes each -> bytes of one stream."""
    shifts = torch.arange(0, _WORD - bits + 1, bits, dtype=torch.int32)
    codes = (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    element = parse(f"uint{bits}:tensor:fp32").element
    return pack(codes.flatten(-2)[..., :size].to(torch.uint8), element)


# Which tensors of a directory are compressed-tensors' weights.
#
# Told by `quant_method`, or by names that end in `.weight_packed`. Bits come from the shapes; what
# these do not tell (codes of 7 bits in the packing of 2025, groups that do not divide a row) from
# the configuration of the module's group.

PRODUCER = "compressed-tensors"
METHODS = ("compressed-tensors", "compressed_tensors")
_PACKED = ".weight_packed"
_BESIDE = {
    "scale": ".weight_scale", "zero_point": ".weight_zero_point", "shape": ".weight_shape",
    "order": ".weight_g_idx", "global_scale": ".weight_global_scale",
}  # fmt: skip
_SPARSE = {  # what the two legacy formats have beside `.weight_packed` or in the place of weights
    ".meta": "half of its codes are left out, for the Marlin kernel (marlin-24)",
    ".weight_mask": "half of its codes are left out by a mask",
    ".bitmask": "what a mask leaves out is not stored (sparse-24-bitmask)",
    ".weight_bitmask": "what a mask leaves out is not stored (sparse-bitmask)",
}
_REMEDY = "no format here has that: save it in a dense format with the library that wrote it"
_SMALL = 1 << 20  # elements of a shape or an order


def find(kinds: Kinds, config: Mapping[str, Any], read: Read) -> LayoutTensors:
    """Packed weights, and under its configuration those of one code an element."""
    tensors, mine = LayoutTensors(), config.get("quant_method") in METHODS
    groups = groups_of(config) if mine else []
    modules = [name.removesuffix(_PACKED) for name in sorted(kinds) if name.endswith(_PACKED)]
    beside = [f"{m}{_BESIDE[role]}" for m in modules for role in ("shape", "order")]
    small = read([name for name in beside if name in kinds and prod(kinds[name][1]) <= _SMALL])
    for module in modules:
        parts = {"codes": f"{module}{_PACKED}"} | _parts(module, kinds)
        info = arguments(module, groups)
        weight = _sparse(module, parts, kinds)
        if weight is None and kinds[parts["codes"]][0] == torch.uint8:
            weight = packed_floats(parts, kinds)
        tensors.add(f"{module}.weight", weight or integers(parts, kinds, small, info))
    if mine:
        for name in sorted(kinds.keys() - tensors.beside):
            _unpacked(tensors, name, kinds, groups)
        find_inputs(tensors, kinds, config)
    if tensors.weights:
        first = next(iter(tensors.weights.values())).parts["codes"]
        tensors.evidence = str(config["evidence"]) if mine else f"it has {first}"
    return tensors


def _parts(module: str, kinds: Kinds) -> dict[str, str]:
    places = {role: f"{module}{ending}" for role, ending in _BESIDE.items()}
    return {role: name for role, name in places.items() if name in kinds}


def _unpacked(
    into: LayoutTensors, name: str, kinds: Kinds, groups: list[tuple[list[str], Mapping[str, Any]]]
) -> None:
    module, _, last = name.rpartition(".")
    if last in ("bitmask", "weight_bitmask", "compressed"):
        weight = _sparse(module, {"codes": name}, kinds)
        if weight is not None and f"{module}.weight" not in into.weights:
            into.add(f"{module}.weight", weight)
        return
    if last != "weight":
        return
    parts = {"codes": name} | _parts(module, kinds)
    if (one := one_an_element(parts, kinds, arguments(module, groups))) is not None:
        into.add(name, one)


def _sparse(module: str, parts: Mapping[str, str], kinds: Kinds) -> Weight | None:
    for ending, reason in _SPARSE.items():
        if f"{module}{ending}" in kinds or f"{module}.weight{ending}" in kinds:
            shape = kinds[parts["codes"]][1]
            return Weight("sparse", shape, parts, None, f"{reason}: {_REMEDY}")
    return None


# compressed-tensors' weights of one code an element, and its packed floats of 4 and 6 bits.
#
# nvfp4-pack-quantized: value = e2m1 · fl(scale / global scale), which divides. mxfp4 and mxfp6: a
# power of two for each 32. Others: int8 or e4m3 under scales for the tensor, rows, groups or
# tiles.


_ELEMENTS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2", torch.int8: "int8"}
_INNER = (torch.float8_e4m3fn, torch.uint8)


def packed_floats(parts: Mapping[str, str], kinds: Kinds) -> Weight:
    """A weight whose codes are packed in uint8."""
    _, bytes_ = kinds[parts["codes"]]
    dtype, scale = kinds.get(parts.get("scale", ""), (None, ()))
    text = f"its codes are uint8 {list(bytes_)} and its scales {dtype} {list(scale)}"
    if len(bytes_) < 2 or len(scale) != len(bytes_) or scale[:-1] != bytes_[:-1] or not scale[-1]:
        return Weight("packed floats", bytes_, parts, None, f"{text}, which match no block")
    each, rest = divmod(bytes_[-1], scale[-1])  # bytes under one scale
    if "global_scale" in parts and dtype in _INNER and (each, rest) == (8, 0):
        kind, spelling, shape = "nvfp4-pack-quantized", "e2m1:group16:e4m3/inv", bytes_[-1] * 2
    elif dtype in BYTES and (each, rest) == (16, 0):
        kind, spelling, shape = "mxfp4-pack-quantized", "e2m1:group32:e8m0/given", bytes_[-1] * 2
    elif dtype in BYTES and (each, rest) == (24, 0):
        kind, spelling = "mxfp6-pack-quantized", "e2m3:group32:e8m0/given"
        shape = bytes_[-1] * 4 // 3
    else:
        return Weight("packed floats", bytes_, parts, None, f"{text}, of an unknown format")
    whole = (*bytes_[:-1], shape)
    decode = partial(_decode_floats, spelling, whole)
    return Weight(kind, whole, parts, str(parse(spelling)), decode=decode)


def one_an_element(
    parts: Mapping[str, str], kinds: Kinds, groups: list[Arguments]
) -> Weight | None:
    """A weight of int8 or float8 elements with scales; None for a tensor that is neither."""
    dtype, shape = kinds[parts["codes"]]
    if dtype not in _ELEMENTS or "scale" not in parts:
        return None
    scale_dtype, scale = kinds[parts["scale"]]
    block = block_of(shape, scale, next(iter(number(groups, "group_size")), 0))
    power = scale_dtype in BYTES
    token = "e8m0/given" if power else FLOATS.get(scale_dtype or torch.bool)
    integer = dtype == torch.int8
    kind = "int-quantized" if integer else "float-quantized"
    if block is None or token is None or (power and integer) or len(shape) < 2:
        text = f"its scales are {scale_dtype} {list(scale)} for codes {list(shape)}"
        return Weight(kind, shape, parts, None, f"{text}, which match no block")
    if power:
        kind = "mxfp8-quantized"
    option = (":asym" if "zero_point" in parts else ":full") if integer else ""
    spelling = f"{_ELEMENTS[dtype]}:{block}:{token}{option}"
    decode = partial(_decode_floats, spelling, shape)
    return Weight(kind, shape, parts, str(parse(spelling)), decode=decode)


def _decode_floats(spelling: str, shape: Shape, parts: Parts) -> QTensor:
    own_parts = {"codes": parts["codes"], "scale": parts["scale"]}
    if "/inv" in spelling:
        own_parts["outer"] = parts["global_scale"]
    if spelling.endswith(":asym"):
        own_parts["zero_point"] = parts["zero_point"]
    return assemble(spelling, shape, own_parts)


# How compressed-tensors quantizes the inputs of layers whose weights it stores.
#
# Read are inputs in blocks whose scales readers choose alike: nvfp4 beside its
# `input_global_scale`, by which x is multiplied, and OCP's microscaling formats. Of other inputs
# (integers, float8), whose scales each reader chooses by a rule of its own, nothing is quantized
# here, and a warning says so.


_GLOBAL = ".input_global_scale"
_BESIDE_INPUTS = (_GLOBAL, ".input_scale", ".input_zero_point")
_MX = {(4, None): "e2m1", (4, "torch.uint8"): "e2m1", (8, "torch.uint8"): "e4m3"}


def find_inputs(tensors: LayoutTensors, kinds: Kinds, config: Mapping[str, Any]) -> None:
    """Add what is known of the inputs of the layers that were found."""
    groups = groups_of(config, "input_activations")
    rest = []
    for name in tensors.weights:
        module = name.removesuffix(".weight")
        info = next(filter(None, arguments(module, groups)), None)
        tensors.beside |= {f"{module}{end}" for end in _BESIDE_INPUTS} & kinds.keys()
        if info is None:
            continue
        result = _input(module, info, kinds)
        if result is None:
            rest.append(module)
        else:
            tensors.inputs[module] = result
    if rest:
        more = f" and {len(rest) - 1} more" * (len(rest) > 1)
        tensors.warnings.append(
            f"inputs of {rest[0]}{more} stay in float here; other readers of this file "
            "quantize them"
        )


def _input(module: str, data: Mapping[str, Any], kinds: Kinds) -> Input | None:
    bits, size = data.get("num_bits"), data.get("group_size")
    if data.get("type") != "float" or data.get("symmetric") is False:
        return None
    if (bits, data.get("strategy"), size) == (4, "tensor_group", 16):
        place = f"{module}{_GLOBAL}"
        return (
            Input("e2m1:group16:e4m3/inv/given", {"outer": place}, _outer)
            if place in kinds
            else None
        )
    element = _MX.get((bits, data.get("scale_dtype")))  # type: ignore[arg-type]
    if data.get("strategy") == "group" and size == 32 and element and data.get("dynamic") is True:
        return Input(f"{element}:group32:e8m0/floor", {}, dict)
    return None


def _outer(parts: Parts) -> Parts:
    return {"outer": parts["outer"].to(torch.float32).reshape(1, 1)}
