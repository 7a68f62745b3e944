# SPDX-License-Identifier: BSD-3-Clause
"""Values in dtypes that no kernel writes are those of float32, cast."""

import pytest
import torch

from tests.support.cuda_equal import wrong

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", ["mxfp4", "int8:token:fp32", "uint3:group7:fp16:asym", "nvfp4"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(fmt: str, dtype: torch.dtype) -> None:
    x = torch.randn(4, 48) * torch.tensor([[1.0], [1e-30], [1e30], [300.0]])
    assert wrong(x, fmt, decodes=dtype) == []
