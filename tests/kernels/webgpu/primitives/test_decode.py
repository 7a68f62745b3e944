# SPDX-License-Identifier: BSD-3-Clause
"""Codes that straddle words and bytes, against a table."""

import pytest
import torch

from blockscale.core.pack import pack
from blockscale.core.parse import parse
from blockscale.kernels.webgpu.gpu.memory import download, upload
from blockscale.kernels.webgpu.primitives.decode import decode
from blockscale.kernels.webgpu.primitives.form import form
from blockscale.kernels.webgpu.primitives.parts import Parts


@pytest.mark.parametrize("bits", [3, 5, 7, 9, 13])
@pytest.mark.parametrize("columns", [40, 11])
def test_every_code_is_its_value(bits: int, columns: int) -> None:
    fmt = f"int{bits}:tensor:fp32"
    half = 2 ** (bits - 1)
    codes = (torch.arange(7 * columns).reshape(7, columns) * 37) % (2 * half) - half
    element = parse(fmt).element
    packed = pack(codes.to(element.code_dtype), element)
    parts = Parts(upload(torch.tensor([0.5])))
    found = decode(form(fmt), upload(packed), (7, columns), parts, torch.float32)
    assert torch.equal(download(found, (7, columns), torch.float32), codes * 0.5)
