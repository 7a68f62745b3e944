"""Kinds of Before on whole numbers and powers of two, so that nothing rounds."""

import torch
from torch import Tensor

from blockscale.layers.before import Before, Rotate, Scale, random_signs

K = 24
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def whole(*shape: int) -> Tensor:
    return torch.randint(-4, 5, shape).float()


def powers(k: int = K) -> Tensor:
    return 2.0 ** torch.randint(-3, 4, (k,))


def kinds(k: int = K) -> list[Before]:
    sizes = [1 << p for p in range(1, 9) if k % (1 << p) == 0]
    rotations = [Rotate(k, s, signs) for s in sizes for signs in (None, random_signs(k, s))]
    return [Scale(powers(k)), *rotations]


def same(a: Tensor, b: Tensor) -> None:
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    torch.testing.assert_close(a, b, rtol=0, atol=0)
