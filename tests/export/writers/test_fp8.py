# SPDX-License-Identifier: BSD-3-Clause
"""FP8 in tiles: bits as they are, scales that multiply."""

import torch

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.export.writers import PlannedTensor, writer_of


def test_parts() -> None:
    writer, x = writer_of("fp8"), torch.randn(200, 300)
    q = bs.quantize(x, "e4m3:tile128x128:fp32")
    made = writer.store("a.weight", q)
    assert {n: (t.dtype, tuple(t.shape)) for n, t in made.items()} == writer.parts(
        "a.weight", q.format, (200, 300)
    )
    weight, scale = made["a.weight"], made["a.weight_scale_inv"]
    assert weight.dtype == torch.float8_e4m3fn and scale.shape == (2, 3)
    wide = scale.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)[:, :300]
    assert torch.equal(weight.float() * wide, q.dequantize())


def test_bytes_of_powers_and_settings() -> None:
    writer = writer_of("fp8")
    q = bs.quantize(torch.randn(128, 256), "e4m3:tile128x128:e8m0/ceil")
    fmt = parse("e4m3:tile128x128:e8m0/given")
    made = writer.store("a.weight", bs.QTensor(q.packed, q.qparams, fmt, q.size))
    assert made["a.weight_scale_inv"].dtype == torch.float8_e8m0fnu
    settings = writer.config([PlannedTensor("a.weight", (128, 256), fmt)], {})[
        "quantization_config"
    ]
    assert settings["weight_block_size"] == [128, 128] and settings["scale_fmt"] == "ue8m0"
    assert "in tiles" in str(writer.holds(parse("e4m3:channel0:fp32"), (8, 8)))
    assert "e4m3 with fp32 scales" in str(writer.holds(parse("int8:tile128x128:fp32"), (8, 8)))
