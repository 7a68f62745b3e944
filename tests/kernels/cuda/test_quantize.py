# SPDX-License-Identifier: BSD-3-Clause
"""Codes of rows that end within a byte take a second kernel, which packs them."""

import pytest
import torch

from blockscale.kernels.cuda import quantize as kernels
from tests.support.cuda_equal import wrong

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("fmt", "columns", "second"),
    [
        ("int4:group16:fp32", 32, False),
        ("int4:group16:fp32", 31, True),
        ("int3:group16:fp32", 32, True),
        ("int8:group16:fp32", 31, False),
        ("int12:group16:fp32", 16, True),
    ],
)
def test_which_codes_are_packed_later(
    fmt: str, columns: int, second: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(3, columns)
    assert wrong(x, fmt) == []
    packed = []
    later = kernels.pack_patterns

    def watched(f, patterns):
        packed.append(patterns.shape)
        return later(f, patterns)

    monkeypatch.setattr(kernels, "pack_patterns", watched)
    assert wrong(x, fmt) == []
    assert bool(packed) == second
    assert set(packed) <= {x.shape}
