# SPDX-License-Identifier: BSD-3-Clause
"""Few rows on a GPU: every format and settings of the way "few", within the op's tolerance."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.kernels.cuda.linear import weighted
from blockscale.kernels.cuda.matmul import hopper
from blockscale.kernels.cuda.matmul.choice import WayChoice
from blockscale.kernels.cuda.matmul.few import FewSettings, takes, usual_words
from blockscale.kernels.cuda.matmul.operands import Values, Weight
from blockscale.kernels.cuda.matmul.reading import reading
from blockscale.ops import primitives as P
from tests.support.gpu_linear import excess

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or hopper.unusable(0) is not None,
        reason="needs a Hopper and a Triton that the kernel was tested with",
    ),
]

FORMATS = (
    *("mxfp4", "nvfp4", "int4", "uint4", "int8_channel", "mxfp8", "mxint8", "bfp8", "fp8"),
    *("int2:group64:e8m0/floor", "uint8:group64:fp32", "int8:tile16x32:e8m0/floor", "ternary"),
    *("log4:group32:e8m0/ceil", "e3m0:group64:pow2/even", "e4m3:group16:e5m2", "binary:token:fp32"),
    *("uint4:token:fp32:asym", "uint8:group64:fp32:asym", "e5m2:group32:e8m0/floor"),
    *("e3m4:group32:e8m0/floor", "int4:group256:fp16:asym", "e2m1:tile16x64:e8m0/floor"),
    *("int4:group32:fp32", "int4:group64:fp16", "uint4:group32:fp32:asym", "int8:group16:fp32"),
    *("uint4:group64:fp32:asym", "int8:group32:fp32", "int2:group64:fp32", "int2:group128:fp32"),
    *("mxfp6", "e2m3:channel0:fp32", "int6:group64:e8m0/floor"),
)
SETTINGS = (FewSettings(8, 32, 32, 2, 2), FewSettings(16, 64, 32, 2), FewSettings(8, 16, 16, 1, 3))
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def stored(n: int, k: int, fmt: str, size: float = 1.0) -> Weight:
    w = torch.randn(n, k, generator=torch.Generator().manual_seed(0)).cuda() * size
    codes, *rest = P.choose_quantize.reference(w, fmt, None)
    scale, outer, zero_point = P.from_list(rest, parse(fmt))[:3]
    return Weight(codes, scale, zero_point, outer)


def run(x, weight, fmt, settings, bias=None):
    return weighted(Values(x), weight, fmt, bias, x.dtype, WayChoice("few", settings))


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name: str) -> None:
    """Outputs, rows and words that fill no tile; x in one, two and three parts."""
    fmt, n, k = str(parse(name)), 200, 1152
    weight, r = stored(n, k, fmt), reading(fmt, k)
    assert hopper.can_run(weight.codes)
    for i, settings in enumerate(SETTINGS):
        settings = settings._replace(words=usual_words(r)) if r.six_bits else settings
        assert takes(r, settings.words)
        m, dtype = (1, 3, 9)[i % 3], DTYPES[(i + len(name)) % 3]
        x, bias = (
            torch.randn(m, k, device="cuda").to(dtype),
            torch.randn(n, device="cuda").to(dtype),
        )
        y = run(x, weight, fmt, settings, bias)
        assert excess(y, x, weight, fmt, "", bias) <= 1, (settings, m, dtype)


@pytest.mark.parametrize(
    "name", ["mxfp4", "mxint8", "mxfp6", "log4:group32:e8m0/ceil", "e4m3:group64:pow2/even"]
)
def test_small_and_large_scales(name: str) -> None:
    """Scales that make up for an element's bias at once do so only where they are small."""
    fmt, n, k = str(parse(name)), 64, 1024
    for size in (1e-30, 3.0, 1e3, 1e30):
        weight = stored(n, k, fmt, size)
        x = torch.randn(3, k, device="cuda").bfloat16() / size
        y = run(x, weight, fmt, FewSettings(8, 32, usual_words(reading(fmt, k)), 2))
        assert excess(y, x, weight, fmt, "", torch.zeros(n, device="cuda")) <= 1, size


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8", "nvfp4"])
def test_poisoned_blocks(name: str) -> None:
    fmt, n, k = str(parse(name)), 64, 1024
    weight = stored(n, k, fmt)
    weight.scale[3, 0] = 255 if name != "nvfp4" else 0x7F
    y = run(torch.randn(3, k, device="cuda").bfloat16(), weight, fmt, FewSettings(8, 32, 32, 2))
    assert y.isnan().all(0).nonzero().flatten().tolist() == [3]
    assert y.isnan().any(0).sum() == 1
    x = torch.randn(3, k, device="cuda").bfloat16()
    x[1, 7] = torch.nan  # in one row of x only
    assert run(x, stored(n, k, fmt), fmt, FewSettings(8, 32, 32, 2)).isnan().any(1).tolist() == [
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("name", ["mxfp4", "int4", "int8_channel", "int4:group32:fp32"])
def test_long_sums_keep_their_bits(name: str) -> None:
    fmt, k, n = str(parse(name)), 16384, 64
    weight = stored(n, k, fmt)
    dense = P.dequantize.reference(Operand(*weight, fmt, k), torch.float32)
    x = (torch.rand(4, k, device="cuda") * dense[3].sign()).bfloat16().float()
    y = run(x, weight, fmt, FewSettings(16, 32, 32, 2))
    assert excess(y, x, weight, fmt, "", torch.zeros(n, device="cuda")) <= 1
