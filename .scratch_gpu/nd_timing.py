"""Scratch: speed of blocks along any dimensions beside a copy. python -m scratch.nd_timing [--alternatives]"""

import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import blockscale as bs
from benchmarks import gpu_primitives as G
from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.operand import operand
from blockscale.ops import primitives as P

EVEN, UNEVEN, WIDE = (512, 512, 1024), (509, 511, 1000), (16384, 16384)
CASES = [
    ("int8:tile32x16:fp32", WIDE), ("int4:tile16x8:fp32", WIDE), ("int4:group32:fp32", WIDE),
    ("int8:block4x8x16:fp32", EVEN), ("int8:block4x8x16:fp32", UNEVEN), ("int4:block4x4x8:fp32", EVEN),
    ("int4:block4x4x8:fp32", UNEVEN), ("int8:block8x8x8:fp32", EVEN), ("int8:block2x2x32:fp32", EVEN),
    ("e2m1:block4x4x32:e8m0/floor", EVEN), ("int8:block3x5x8:fp32", EVEN), ("e4m3:block16x16x16:fp32", EVEN),
    ("int4:block2x*x16:fp32", (4096, 16, 4096)), ("uint4:block4x8x16:fp32:asym", EVEN),
    ("ternary:block4x8x16:fp32", EVEN), ("binary:block4x8x16:fp32", EVEN), ("e2m1:block4x4x16:e4m3", EVEN),
    ("int8:block4x8x16:fp32:stochastic", EVEN), ("int8:block32x32x32:fp32", EVEN), ("int8:block64x64x64:fp32", EVEN),
    ("int8:block1x2x3x3:fp32", (4096, 4096, 3, 3)), ("int8:block3x3x2x1:fp32", (4096, 4096, 3, 3)),
    ("int8:block3x3x2x1:fp32", (1024, 1024, 16, 16)), ("int8:block4x4x4x8:fp32", (64, 64, 64, 1024)),
]  # fmt: skip
FEW = [each for each in CASES if each[0].split(":")[1] in ("block4x8x16", "block4x4x8", "block8x8x8", "block2x2x32")
       and each[0].count(":") == 2 and each[0][:3] == "int"]


def calls(fmt: str, shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], object], int]]:
    x = torch.randn(shape, device="cuda", dtype=dtype)
    seed = torch.tensor(7, device="cuda") if "stochastic" in fmt else None
    packed, *parts = P.choose_quantize(x, fmt, seed)
    yield "quantize", lambda: P.choose_quantize(x, fmt, seed), G.moved(x, packed, *parts)
    by = Quantizer(None, None, None, fmt, seed)
    yield "fake_quantize", lambda: P.fake_quantize(x, by), G.moved(x, x)
    stored = operand(packed, P.from_list(parts, parse(fmt)), fmt, shape[-1])
    yield "dequantize", lambda: P.dequantize(stored, dtype), G.moved(x, packed, *parts)


def main() -> None:
    torch.manual_seed(0)
    with bs.use("cuda"):
        copied = G.copy_speed()
        print(f"{torch.cuda.get_device_name()}: copy {copied / 1e9:.2f} TB/s", flush=True)
        for fmt, shape in CASES:
            for dtype in (torch.float32, torch.bfloat16):
                found = [f"{name} {size / G.milliseconds(run, 3, 5) / copied:.3f}" for name, run, size in calls(fmt, shape, dtype)]
                print(f"{fmt:36} {str(shape):22} {str(dtype)[6:]:9}", *found, flush=True)
        if "--alternatives" not in sys.argv:
            return
        for elements, warps in ((2048, 1), (2048, 2), (4096, 4), (4096, 8), (8192, 4), (8192, 8)):
            G.with_setting(elements, warps)
            for fmt, shape in FEW:
                for dtype in (torch.float32, torch.bfloat16):
                    found = [f"{name} {size / G.milliseconds(run, 3, 5) / copied:.3f}" for name, run, size in calls(fmt, shape, dtype)]
                    print(f"{elements}/{warps} {fmt:36} {str(shape):22} {str(dtype)[6:]:9}", *found, flush=True)


if __name__ == "__main__":
    main()
