# SPDX-License-Identifier: BSD-3-Clause
"""ggml's simple types at their edges. Bytes of other numbers are in producers/test_gguf.py."""

import pytest
import torch

import blockscale as bs


def made(name: str, x: torch.Tensor) -> bs.QTensor:
    return bs.quantize(x, bs.profile(f"gguf.{name}"))


def test_minimums_are_not_widened_to_zero() -> None:
    q = made("q4_1", torch.linspace(3.0, 4.5, 32).reshape(1, 32))
    assert q.qparams.offset.item() == 3.0 and q.scale.item() == pytest.approx(0.1, rel=1e-3)
    assert (q.codes.min().item(), q.codes.max().item()) == (0, 15)


@pytest.mark.parametrize("first", [0.0, -0.0])
def test_the_first_zero_is_the_minimum(first: float) -> None:
    x = torch.tensor([first] + [-first] * 31).reshape(1, 32)
    assert made("q5_1", x).qparams.offset.signbit().item() == (str(first) == "-0.0")


def test_signs() -> None:
    x = torch.tensor([1.0, -0.0, 0.0, -3.0] * 32).reshape(1, 128)
    q = made("q1_0", x)
    assert q.codes[0, :4].tolist() == [1, 1, 1, -1]  # -0 >= 0
    assert q.scale.item() == 1.0


def test_halves_of_ternary_go_away_from_zero() -> None:
    x = torch.tensor([2.0, 1.0, -1.0, 0.5]).repeat(64).reshape(1, 256)
    assert made("tq2_0", x).codes[0, :4].tolist() == [1, 1, -1, 0]
    q = made("q2_0", x)
    assert q.codes[0, :4].tolist() == [2, 2, 0, 1] and q.zero_point.unique().tolist() == [1]


def test_the_logarithm_of_mxfp4_is_rounded() -> None:
    """ggml's floor(log2f(4096 - 2^-12)) is 12; the exponent of the number is 11."""
    x = torch.zeros(2, 32)
    x[0, 0], x[1, 0] = 4096 - 2**-12, 4096 - 2**-9
    assert made("mxfp4", x).qparams.scale.flatten().tolist() == [127 + 12 - 2, 127 + 11 - 2]


def test_scales_of_nvfp4() -> None:
    """Half up by bits, subnormals up to 7 / 512, and 448 from the first that round to 256."""
    wanted = torch.tensor([0.0, 2**-11, 2**-10, 7.9 / 512, 1.0625, 247.0, 248.0, 1e6])
    x = torch.zeros(8, 64)
    x[:, 0] = wanted * 6
    found = made("nvfp4", x).qparams.scale[:, 0].tolist()
    assert found == [0, 0, 1, 7, 0x39, 0x77, 0x7E, 0x7E]
