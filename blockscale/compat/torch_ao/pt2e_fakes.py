# SPDX-License-Identifier: BSD-3-Clause
"""torchao's fake quantizers for PT2E, whose observers take `power_of_2_scale`; see pt2e."""

from typing import Any

from torchao.quantization.pt2e import fake_quantize  # type: ignore[import-untyped]

from blockscale.compat.torch_ao.fake_quantize import InTurn, taking
from blockscale.compat.torch_ao.observers import method
from blockscale.compat.torch_ao.pt2e import MovingAverageMinMaxObserver


class FakeQuantize(fake_quantize.FakeQuantize):
    """As torchao's; `power_of_2_scale=True` goes to the observer like its other arguments."""

    def __init__(self, observer: Any = MovingAverageMinMaxObserver, *args: Any, **kwargs: Any):
        super().__init__(taking(observer, kwargs), *args, **kwargs)


class FusedMovingAvgObsFakeQuantize(InTurn, fake_quantize.FusedMovingAvgObsFakeQuantize):
    """As torchao's. With `power_of_2_scale` its two halves run one after the other."""

    _in_turn = method(fake_quantize.FakeQuantize.forward, "_in_turn")
    _fused = method(fake_quantize.FusedMovingAvgObsFakeQuantize.forward, "_fused")

    def __init__(self, observer: Any = MovingAverageMinMaxObserver, *args: Any, **kwargs: Any):
        super().__init__(taking(observer, kwargs), *args, **kwargs)


FAKES: dict[Any, Any] = {
    fake_quantize.FakeQuantize: FakeQuantize,
    fake_quantize.FusedMovingAvgObsFakeQuantize: FusedMovingAvgObsFakeQuantize,
}
