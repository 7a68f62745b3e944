# SPDX-License-Identifier: BSD-3-Clause
"""GGUF: which type a format is, and what a type lacks of its format."""

import pytest
import torch

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.export.checkpoints.gguf.records import TYPES
from blockscale.export.writers import writer_of
from blockscale.export.writers.gguf import kind_of


@pytest.mark.parametrize("name", TYPES)
def test_types(name: str) -> None:
    fmt = parse(TYPES[name].format)
    assert kind_of(fmt, name) == name
    assert kind_of(fmt) == ("TQ2_0" if name == "TQ1_0" else name)
    assert kind_of(fmt, "Q9_9") == kind_of(fmt)


def test_what_it_does_not_hold() -> None:
    writer = writer_of("gguf")
    assert "ggml has no such type" in str(writer.holds(parse("int4:group64:fp16:full"), (8, 64)))
    assert "rows of [48] do not divide into blocks of 32 (Q4_0)" in str(
        writer.holds(parse("int4:group32:fp16:full"), (8, 48))
    )


def test_what_types_lack() -> None:
    writer, x = writer_of("gguf"), torch.randn(4, 64)
    two = bs.quantize(x, "uint2:group64:fp16:asym")
    assert "not all 1" in str(writer.lacks(two))
    ones = two.qparams._replace(zero_point=torch.ones_like(two.zero_point))
    assert writer.lacks(bs.QTensor(two.packed, ones, two.format, two.size)) is None
    nv = bs.quantize(x, "nvfp4")
    assert writer.lacks(nv) is None
    [(place, scale)] = writer.beside("blk.3.attn_k.weight", nv).items()
    assert place == "blk.3.attn_k.scale" and scale.tolist() == nv.qparams.outer.reshape(-1).tolist()
    with pytest.raises(ValueError, match=r"llama\.cpp does not read for this tensor"):
        writer.beside("token_embd.weight", nv)
    one = nv.qparams._replace(outer=torch.ones_like(nv.qparams.outer))
    nv = bs.QTensor(nv.packed, one, nv.format, nv.size)
    assert writer.lacks(nv) is None
    nv.qparams.scale[1, 2] = 127
    assert "negative or NaN" in str(writer.lacks(nv))
    mx = bs.quantize(torch.full((1, 32), torch.nan), "mxfp4")
    mx = bs.QTensor(mx.packed, mx.qparams, parse("e2m1:group32:e8m0/given"), 32)
    assert "NaN" in str(writer.lacks(mx))
    assert writer.lacks(bs.quantize(x, "int8:group32:fp16:full")) is None
