"""Float32 arithmetic that stays float32, whatever torch's switches say."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor


@contextmanager
def _float32_on_cuda() -> Iterator[None]:
    """No autocast and no TF32, which is cuDNN's default and keeps 11 bits."""
    settings: tuple[Any, ...] = (
        torch.backends.cudnn.conv,  # type: ignore[attr-defined]
        torch.backends.cuda.matmul,
    )
    before = [each.fp32_precision for each in settings]
    try:
        for each in settings:
            each.fp32_precision = "ieee"
        with torch.autocast("cuda", enabled=False):
            yield
    finally:
        for each, old in zip(settings, before, strict=True):
            each.fp32_precision = old


def float32_inside(x: Tensor) -> AbstractContextManager[object]:
    """Keeps lower precisions out of an op's arithmetic, which is float32 by contract."""
    kind = x.device.type
    if kind == "cuda":
        return _float32_on_cuda()
    if kind == "meta" or not torch.is_autocast_enabled(kind):  # asking is cheaper than entering
        return nullcontext()
    return torch.autocast(kind, enabled=False)
