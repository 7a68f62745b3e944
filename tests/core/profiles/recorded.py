# SPDX-License-Identifier: BSD-3-Clause
"""What producers gave (tests/recorded/record_profiles.py), and how a profile compares with it."""

import pathlib
from functools import cache

import torch
from safetensors.torch import load_file
from torch import Tensor

import blockscale as bs

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FOLDER = pathlib.Path(__file__).parents[2] / "recorded"


@cache
def recorded(producer: str) -> dict[str, Tensor]:
    return load_file(FOLDER / f"profiles_{producer}.safetensors")


def profiles(producer: str) -> list[tuple[str, str]]:
    """Every (profile, dtype) that was recorded."""
    names = (key.split(".")[:2] for key in recorded(producer) if not key.startswith("x."))
    return sorted({(profile, dtype) for profile, dtype in names})


def differing(producer: str, name: str, dtype: str, kind: str, block: str = "") -> dict[str, int]:
    """{part: how many of its numbers have other bits}, for the parts that the producer has."""
    known = recorded(producer)
    x = known[f"x.{kind}"].to(DTYPES[dtype])
    q = bs.quantize(x, bs.profile(f"{producer}.{name}{block}"))
    start = f"{name}.{dtype}.{kind}."
    theirs = {key.removeprefix(start): known[key] for key in known if key.startswith(start)}
    if "values" in theirs:  # a producer that only rounds numbers; integers have no -0
        plus = 0.0 if q.format.element.integer else -0.0
        return {"values": _count(q.dequantize(), theirs["values"].float() + plus)}
    assert "codes" in theirs and len(theirs) > 1
    if "largest" in theirs:  # a file of bitsandbytes has these; scales are 1/127 of them
        theirs["scale"] = theirs.pop("largest") * 7.874015718698502e-3
    found = {part: _count(_part(q, part), each) for part, each in theirs.items()}
    if q.format.element.nan_code is not None:  # a NaN has the sign that a processor gives 0 / 0
        values = [q.format.element.decode(each) for each in (q.codes, theirs["codes"])]
        found["codes"] = _count(*values)
    return found


def _part(q: bs.QTensor, part: str) -> Tensor:
    return q.codes if part == "codes" else getattr(q.qparams, part)


def _count(ours: Tensor, theirs: Tensor) -> int:
    assert ours.dtype == theirs.dtype, (ours.dtype, theirs.dtype)
    assert tuple(ours.shape) == tuple(theirs.shape)
    return int((_bits(ours) != _bits(theirs)).sum())


def _bits(x: Tensor) -> Tensor:
    """Of floats their bits, but NaN is NaN."""
    if not x.is_floating_point():
        return x
    kind = {4: torch.int32, 2: torch.int16}[x.element_size()]
    return x.masked_fill(x.isnan(), torch.nan).contiguous().view(kind)
