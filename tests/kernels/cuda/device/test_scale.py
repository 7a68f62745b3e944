"""Scales are chosen and stored as the reference does."""

import pytest
import torch

from tests.kernels.cuda.equal import wrong

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("kind", ["e8m0/ceil", "e8m0/nearest", "pow2/tosa"])
def test_scales_of_subnormal_numbers(kind: str) -> None:
    x = torch.tensor([1, 2, 3, 5, 255, 257, 2**22, 2**23 - 1], dtype=torch.int32)
    x = torch.cat([x, torch.arange(2**23, 2**28, 2**23 + 2**21, dtype=torch.int32)])
    for element in ("int8", "log4"):
        assert wrong(x.view(torch.float32)[:, None], f"{element}:token:{kind}") == [], element
