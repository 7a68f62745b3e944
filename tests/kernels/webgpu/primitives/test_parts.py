# SPDX-License-Identifier: BSD-3-Clause
"""What stands beside codes: read, written, and given by callers."""

import pytest
import torch

from blockscale.kernels.webgpu.gpu.memory import download, upload
from blockscale.kernels.webgpu.primitives.form import form
from blockscale.kernels.webgpu.primitives.parts import (
    Parts,
    given_parts,
    new_parts,
    outer_of_blocks,
    reading,
    returned,
)


def test_each_part_has_its_reader() -> None:
    f = form("uint4:group8:fp16:asym(bf16)")
    parts = new_parts(f, (2, 16))
    stored, buffers = reading(f, parts, (2, 16))
    assert (stored.given_scale, stored.given_zero) == ("float16", "bfloat16")
    assert set(buffers) == {"scales", "zeros"}
    kinds = [part.dtype for part in returned(f, parts, (2, 16), torch.empty(0))]
    assert kinds == [torch.float16, torch.bfloat16]


def test_an_outer_scale_of_some_blocks_is_spread_over_them() -> None:
    outer = torch.tensor([[0.5], [2.0]], dtype=torch.bfloat16)
    f = form("e2m1:group16:(e4m3:token:bf16)")
    kind, each = outer_of_blocks(f, upload(outer), (2, 48))
    assert kind == "each"
    assert download(each, (6,), torch.float32).tolist() == [0.5] * 3 + [2.0] * 3


def test_a_scale_that_does_not_fit_is_told() -> None:
    x = torch.zeros(2, 16)
    with pytest.raises(ValueError, match="float32"):
        given_parts(form("int8:group8:fp32"), (2, 16), torch.ones(2, 2).half(), None, None, None, x)
    fitting = given_parts(form("int8:group8:fp32"), (2, 16), torch.ones(2, 2), None, None, None, x)
    assert isinstance(fitting, Parts) and fitting.zero is None
