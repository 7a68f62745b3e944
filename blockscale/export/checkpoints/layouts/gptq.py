# SPDX-License-Identifier: BSD-3-Clause
"""GPTQ: AutoGPTQ, GPTQModel, auto-round's export, optimum.

A module has qweight int32 [inputs * bits / 32, outputs], a dense stream down the inputs of each
output; qzeros int32 [groups, outputs * bits / 32], a stream along the outputs; scales [groups,
outputs] and, mostly, g_idx int32 [inputs], the group of each input. Sources: AutoGPTQ
auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py (9f7d370), GPTQModel gptqmodel/utils/model.py
(f4c327a17).

Version 1 stores zero points less one, and not in one way where one of them is 0: AutoGPTQ's
uint32 of -1 covers the fields above it, GPTQModel's subtraction borrows from them.
Each is read as its own producer reads it; of AutoGPTQ, qlinear_cuda_old, since its qlinear_cuda
reads such a 0 as 2^bits. A symmetric file's zero points tell the version, whatever it says.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from blockscale.export.checkpoints import assembling
from blockscale.export.checkpoints.layouts import Kinds, LayoutTensors, Parts, Read, Weight
from blockscale.ops.tensor import QTensor

PRODUCER = "GPTQ"
METHODS = ("gptq", "gptqmodel")
_SCALES = (torch.float16, torch.bfloat16, torch.float32)
_PROBED = 3  # modules whose zero points are looked at to tell the version
_FORMATS = ("gptq", "gptq_v2", "gptq_p")


def find(kinds: Kinds, config: Mapping[str, Any], read: Read) -> LayoutTensors:
    """Modules with qweight and scales as GPTQ has them."""
    tensors = LayoutTensors()
    is_gptq = config.get("quant_method") in METHODS
    bases = [
        name.removesuffix(".qweight")
        for name in kinds
        if name.endswith(".qweight") and _fits(name.removesuffix(".qweight"), kinds, is_gptq)
    ]
    if not bases:
        return tensors
    version = _version(bases, kinds, config, read, tensors)
    indices = read([f"{base}.g_idx" for base in bases if f"{base}.g_idx" in kinds])
    for base in bases:
        _add(tensors, base, kinds, config, version, indices.get(f"{base}.g_idx"))
    return tensors


def _fits(base: str, kinds: Kinds, is_declared: bool) -> bool:
    """Whether a module's tensors are as GPTQ has them, and not as AWQ does."""
    parts = [kinds.get(f"{base}.{part}") for part in ("qweight", "qzeros", "scales")]
    if None in parts:
        return False
    (dtype, codes), (other, zeros), (_, scales) = (part for part in parts if part is not None)
    ranks = len(codes) == len(zeros) == len(scales) == 2
    if (
        not ranks
        or not dtype == other == torch.int32
        or codes[1] != scales[1]
        or zeros[0] != scales[0]
    ):
        return False
    return (
        is_declared or f"{base}.g_idx" in kinds or codes[0] != scales[0]
    )  # which AWQ's gemv has alike


def _bits(base: str, kinds: Kinds, config: Mapping[str, Any]) -> int | None:
    """By the shapes, which modules of their own bits have right; None if nothing fits."""
    rows = kinds[f"{base}.qweight"][1][0]
    if f"{base}.g_idx" in kinds:
        inputs = (kinds[f"{base}.g_idx"][1] or (0,))[0]
        bits = rows * 32 // inputs if inputs and rows * 32 % inputs == 0 else 0
        return bits if 2 <= bits <= 8 else None
    outputs, stream = kinds[f"{base}.scales"][1][1], kinds[f"{base}.qzeros"][1][1] * 32
    bits = stream // outputs if outputs and stream % outputs == 0 else 0
    value = config.get("bits")
    if not bits and isinstance(value, int) and rows * 32 % max(value, 1) == 0:
        bits = value
    return bits if 2 <= bits <= 8 else None


def _add(
    tensors: LayoutTensors,
    base: str,
    kinds: Kinds,
    config: Mapping[str, Any],
    version: str,
    index: Tensor | None,
) -> None:
    there = [p for p in ("qweight", "qzeros", "scales", "g_idx") if f"{base}.{p}" in kinds]
    parts = {part: f"{base}.{part}" for part in there}
    bits = _bits(base, kinds, config)
    (_, (rows, outputs)), (scale, (groups, _)) = kinds[parts["qweight"]], kinds[parts["scales"]]
    shape: tuple[int, ...] = (outputs, rows * 32 // bits) if bits else ()
    reason = _refusal(config, bits, scale, shape, groups, kinds[parts["qzeros"]][1][1])
    kind = f"gptq {bits} bits" if bits else "gptq"
    if reason or bits is None or scale is None:
        tensors.add(f"{base}.weight", Weight(kind, shape, parts, None, reason))
        return
    size = _group(config, shape[1], groups)
    fmt = f"uint{bits}:{assembling.groups(size, shape[1])}:{assembling.scale_type(scale)}:asym"
    order = None
    if index is not None and not torch.equal(index.to(torch.int64), _trivial(shape[1], size)):
        order, kind = partial(_order, size=size, groups=groups), f"{kind}, act-order"
    decode = partial(_decode, fmt=fmt, shape=shape, bits=bits, version=version, order=order)
    weight = Weight(kind, shape, parts, fmt, "", decode, order, scale, codes="qweight")
    tensors.add(f"{base}.weight", weight)


def _refusal(
    config: Mapping[str, Any],
    bits: int | None,
    scale: torch.dtype | None,
    shape: Sequence[int],
    groups: int,
    zeros: int,
) -> str:
    """Why a module cannot be read; empty where it can."""
    value = config.get("checkpoint_format", config.get("format", "gptq"))
    if value not in _FORMATS:
        return (
            f"its checkpoint_format is {value!r}, which is rearranged for one kernel: write it "
            f"again as gptq_v2 with the tool that made it"
        )
    if bits is None:
        return "its shapes match no number of bits from 2 to 8"
    if scale not in _SCALES:
        return f"its scales are {scale}, expected float16, bfloat16 or float32"
    if not groups or zeros * 32 != shape[0] * bits:
        return f"its qzeros have {zeros} words per group, which do not match {shape[0]} outputs"
    return ""


def _group(config: Mapping[str, Any], inputs: int, groups: int) -> int:
    """Inputs of a group: as the configuration says where that fits, since a last one may be
    partial; modules of their own have other sizes."""
    value = config.get("group_size")
    if isinstance(value, int) and value > 0 and -(-inputs // value) == groups:
        return value
    return -(-inputs // groups)


def _trivial(inputs: int, size: int) -> Tensor:
    return torch.arange(inputs) // size


def _order(parts: Parts, *, size: int, groups: int) -> Tensor:
    """The inputs in the order of their groups. Raises ValueError for groups of other sizes."""
    index = parts["g_idx"].to(torch.int64)
    expected = torch.bincount(_trivial(index.numel(), size), minlength=groups)
    if int(index.min()) < 0 or int(index.max()) >= groups:
        raise ValueError(f"g_idx names groups {int(index.min())} to {int(index.max())} of {groups}")
    if not torch.equal(torch.bincount(index, minlength=groups), expected):
        raise ValueError(
            f"g_idx has groups of other sizes than {size}, which no format can describe"
        )
    return torch.argsort(index, stable=True)


def _decode(
    parts: Parts, *, fmt: str, shape: Sequence[int], bits: int, version: str, order: Any
) -> QTensor:
    """Down the inputs is, transposed, along a row: the bytes are ours as they are."""
    stream = assembling.as_codes(parts["qweight"].mT, fmt)
    if order is not None:
        codes = assembling.fields(parts["qweight"].mT, bits)
        stream = assembling.packed(codes[:, order(parts)], fmt)
    zeros = zero_points(parts["qzeros"], bits, version).mT
    own_parts = {"codes": stream, "scale": parts["scales"].mT, "zero_point": zeros}
    return assembling.quantized(fmt, shape, own_parts)


def zero_points(stored: Tensor, bits: int, version: str) -> Tensor:
    """qzeros int32 [groups, words] -> zero points int32 [groups, outputs], as `version` has them.

    version: "2", "1 of AutoGPTQ" or "1 of GPTQModel"
    """
    even = bits in (2, 4, 8)  # no field crosses words
    if version == "1 of GPTQModel" and even:
        ones = sum(1 << bits * i for i in range(32 // bits))  # a one in each field
        total = (stored.to(torch.int64) + ones) & 0xFFFFFFFF
        stored = torch.where(total >= 1 << 31, total - (1 << 32), total).to(torch.int32)
    zeros = assembling.fields(stored, bits).to(torch.int32)
    if version == "2" or (version == "1 of GPTQModel" and even):
        return zeros
    return (zeros + 1) % 2**bits if even or version == "1 of GPTQModel" else zeros + 1


def _version(
    bases: Sequence[str],
    kinds: Kinds,
    config: Mapping[str, Any],
    read: Read,
    tensors: LayoutTensors,
) -> str:
    """The version, by which zero points are stored; warns where values contradict the config."""
    value = config.get("checkpoint_format", config.get("format"))
    by_zeros = _version_of_zeros(bases, kinds, config, read)
    meta = config.get("meta")
    by = str(meta.get("quantizer", "")) if isinstance(meta, dict) else ""
    first = "1 of GPTQModel" if "gptqmodel" in by.lower() else "1 of AutoGPTQ"
    by_config = "2" if value in ("gptq_v2", "gptq_p") else first
    version = {"": by_config, "1": first, "2": "2"}[by_zeros]
    how = "its zero points say so" if by_zeros else f"checkpoint_format {value}"
    tensors.evidence = f"{bases[0]}.qweight and its scales are GPTQ's, of version {version} ({how})"
    if by_zeros and value is not None and version[0] != by_config[0]:
        tensors.warnings.append(
            f"its configuration says {value} (version {by_config[0]}), but its zero points are "
            f"those of version {version[0]}: read as version {version[0]}"
        )
    return version


def _version_of_zeros(
    bases: Sequence[str], kinds: Kinds, config: Mapping[str, Any], read: Read
) -> str:
    """The version that the zero points of a symmetric file show, "1" or "2"; else empty."""
    if config.get("sym") is False:
        return ""
    samples = {b: bits for b in bases[:_PROBED] if (bits := _bits(b, kinds, config)) is not None}
    stored = read([f"{base}.qzeros" for base in samples])
    answers = set()
    for base, bits in samples.items():
        zeros = stored[f"{base}.qzeros"]
        constant = zeros.numel() and (bits not in (2, 4, 8) or bool((zeros == zeros[0, 0]).all()))
        values = assembling.fields(zeros, bits).unique().tolist() if constant else []
        half = 2 ** (bits - 1)
        answers.add({(half,): "2", (half - 1,): "1"}.get(tuple(values), ""))
    return answers.pop() if len(answers) == 1 else ""
