"""NVFP4's two directions: each step the same, or none."""

import torch

import blockscale as bs
from blockscale.core.parse import parse
from blockscale.export.conversion.turned import multiplier, other_direction, turned

MUL, DIV = parse("e2m1:group16:e4m3"), parse("e2m1:group16:e4m3/inv")


def test_there_and_back() -> None:
    found = 0
    for seed in range(40):
        x = torch.randn(4, 64, generator=torch.Generator().manual_seed(seed))
        q = bs.quantize(x, MUL)
        made = turned(q, DIV)
        if made is None:
            continue
        found += 1
        assert torch.equal(made.dequantize(), q.dequantize())
        back = turned(made, MUL)
        assert back is not None and torch.equal(back.dequantize(), q.dequantize())
    assert 0 < found < 40  # some have no reciprocal


def test_which_formats() -> None:
    assert other_direction(MUL, DIV) and other_direction(DIV, MUL)
    assert not other_direction(MUL, MUL) and not other_direction(parse("mxfp4"), DIV)
    assert not other_direction(parse("e2m1:group32:e4m3"), DIV)


def test_no_multiplier_is_said() -> None:
    codes = torch.arange(1, 127, dtype=torch.uint8)
    exact = [multiplier(codes, torch.tensor(float(g)))[1] for g in (2.0, 3.0, 10.0, 448.0)]
    assert exact[0] and not all(exact)
