# SPDX-License-Identifier: BSD-3-Clause
"""torchao's observers for PT2E, of the same names, with `power_of_2_scale`.

torchao.quantization.pt2e has copies of torch.ao's classes, which its `prepare_pt2e` tells from
torch.ao's. These are subclasses of the copies. `power_of_2` finds them here and in pt2e_fakes;
nothing else imports these modules, which need torchao.
"""

from typing import Any

from torchao.quantization.pt2e import observer  # type: ignore[import-untyped]

from blockscale.compat.torch_ao.observers import PowerOfTwoScale, method


class OfTorchao(PowerOfTwoScale):
    """What the observers below add to torchao's that choose a scale."""

    _float_qparams = method(
        observer.UniformQuantizationObserverBase._calculate_qparams, "_float_qparams"
    )


class MinMaxObserver(OfTorchao, observer.MinMaxObserver):
    """The smallest and largest value of a tensor so far; as torchao's, with power_of_2_scale."""


class MovingAverageMinMaxObserver(OfTorchao, observer.MovingAverageMinMaxObserver):
    """Their moving averages over batches; as torchao's, with power_of_2_scale."""


class PerChannelMinMaxObserver(OfTorchao, observer.PerChannelMinMaxObserver):
    """The smallest and largest value of each channel; as torchao's, with power_of_2_scale."""


class MovingAveragePerChannelMinMaxObserver(
    OfTorchao, observer.MovingAveragePerChannelMinMaxObserver
):
    """Their moving averages over batches; as torchao's, with power_of_2_scale."""


class HistogramObserver(OfTorchao, observer.HistogramObserver):
    """The range of least squared error for float scales; as torchao's, with power_of_2_scale."""


class PlaceholderObserver(PowerOfTwoScale, observer.PlaceholderObserver):
    """Only says what is wanted; as torchao's, with power_of_2_scale.

    Raises ValueError for both power_of_2_scale and is_dynamic: torchao's converted programs choose
    dynamic scales by an operator of its own, which knows nothing of this option.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.power_of_2_scale and self.is_dynamic:
            raise ValueError(
                "power_of_2_scale: torchao chooses dynamic scales at run time, as floats: use a "
                "static observer, or blockscale's recipes"
            )


ObserverBase = observer.ObserverBase
OBSERVERS: dict[Any, Any] = {
    observer.MinMaxObserver: MinMaxObserver,
    observer.MovingAverageMinMaxObserver: MovingAverageMinMaxObserver,
    observer.PerChannelMinMaxObserver: PerChannelMinMaxObserver,
    observer.MovingAveragePerChannelMinMaxObserver: MovingAveragePerChannelMinMaxObserver,
    observer.HistogramObserver: HistogramObserver,
    observer.PlaceholderObserver: PlaceholderObserver,
}
