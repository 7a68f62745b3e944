"""torch.ao's observers with one option more: `power_of_2_scale`.

They are torch.ao's own classes, so everything else of theirs is as it was, bit for bit, and
torch.ao's own flows accept them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.ao import quantization as ao

from blockscale.core.power_of_two import nearest_power

SYMMETRIC = (torch.per_tensor_symmetric, torch.per_channel_symmetric)


class PowerOfTwoScale:
    """What the observers below add to torch.ao's."""

    qscheme: torch.qscheme
    quant_min: int
    quant_max: int

    def __init__(self, *args: Any, power_of_2_scale: bool = False, **kwargs: Any):
        """power_of_2_scale: round scales to the nearest power of two (bs.round_to_power_of_2) and
        choose zero points from the rounded scales. Other arguments as torch.ao's class.

        Raises ValueError with the qscheme per_channel_affine_float_qparams, whose zero points are
        floats.
        """
        super().__init__(*args, **kwargs)
        self.power_of_2_scale = power_of_2_scale
        if power_of_2_scale and self.qscheme == torch.per_channel_affine_float_qparams:
            raise ValueError(
                "power_of_2_scale: zero points in float leave nothing to shift: "
                "use torch.per_channel_affine"
            )

    def _calculate_qparams(self, min_val: Tensor, max_val: Tensor) -> tuple[Tensor, Tensor]:
        """torch.ao's scale and zero point, and then the rounded ones."""
        scale, zero_point = super()._calculate_qparams(min_val, max_val)  # type: ignore[misc]
        if not self.power_of_2_scale:
            return scale, zero_point
        scale = nearest_power(scale)
        unseen = min_val.numel() == 0 or bool((min_val > max_val).any())
        if self.qscheme in SYMMETRIC or unseen:
            return scale, zero_point
        steps = torch.round(min_val.clamp(max=0.0) / scale).to(zero_point.dtype)
        return scale, torch.clamp(self.quant_min - steps, self.quant_min, self.quant_max)


class MinMaxObserver(PowerOfTwoScale, ao.MinMaxObserver):
    """The smallest and largest value of a tensor so far; as torch.ao's, with power_of_2_scale."""


class MovingAverageMinMaxObserver(PowerOfTwoScale, ao.MovingAverageMinMaxObserver):
    """Their moving averages over batches; as torch.ao's, with power_of_2_scale."""


class PerChannelMinMaxObserver(PowerOfTwoScale, ao.PerChannelMinMaxObserver):
    """The smallest and largest value of each channel; as torch.ao's, with power_of_2_scale."""


class MovingAveragePerChannelMinMaxObserver(
    PowerOfTwoScale, ao.MovingAveragePerChannelMinMaxObserver
):
    """Their moving averages over batches; as torch.ao's, with power_of_2_scale."""


class HistogramObserver(PowerOfTwoScale, ao.HistogramObserver):
    """The range of least squared error in a histogram; as torch.ao's, with power_of_2_scale.

    The range is searched as torch.ao does, for float scales, and the scale rounded afterwards. The
    observer "mse" of bs.calibrate searches among the powers of two themselves.
    """


class PlaceholderObserver(PowerOfTwoScale, ao.PlaceholderObserver):
    """Only says what is wanted; as torch.ao's, with power_of_2_scale."""
