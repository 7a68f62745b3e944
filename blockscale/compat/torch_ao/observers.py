# SPDX-License-Identifier: BSD-3-Clause
"""torch.ao's observers with one option more: `power_of_2_scale`.

They are torch.ao's own classes, so everything else of theirs is as it was, bit for bit, and
torch.ao's own flows and torch.jit.script accept them.
"""

import functools
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.ao import quantization as ao

from blockscale.compat.torch_ao.blocks import (
    FormatObserver,
    format_as_dtype,
    observer_arguments,
    spec_of,
)
from blockscale.core.integer_scales import nearest_power
from blockscale.core.torch_private import calculate_qparams


def method(function: Any, name: str) -> Any:
    """A function of a class of torch.ao -> the same as another method, by a name of its own.

    It stands for super(), which TorchScript does not have: that compiles methods by their names.
    """
    return FunctionType(
        function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
    )


class PowerOfTwoScale:
    """What the observers below add to torch.ao's.

    A subclass that chooses scales in a `calculate_qparams` or `_calculate_qparams` of its own
    chooses them as before, and has them rounded by `rounded`.

    With a format as `dtype` ("bfp8", a spelling, a Format) there comes a FormatObserver instead.
    """

    if TYPE_CHECKING:  # at run time torch.jit.script would take them for the module's attributes
        qscheme: torch.qscheme
        quant_min: int
        quant_max: int
        eps: Tensor
        _float_qparams: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """An observer of the class; of a format, what stands for it."""
        arguments = observer_arguments(cls, args, kwargs)
        if format_as_dtype(arguments) is None:
            return super().__new__(cls)
        options = {k: v for k, v in arguments.items() if k not in ("averaging_constant", "bins")}
        return FormatObserver(spec=spec_of(cls, arguments), **options)

    def __init__(self, *args: Any, power_of_2_scale: bool = False, **kwargs: Any):
        """power_of_2_scale: choose the nearest power of two for a scale (bs.round_to_power_of_2),
        and zero points from that one. Other arguments as torch.ao's class.

        Raises ValueError with the qscheme per_channel_affine_float_qparams, whose zero points are
        floats.
        """
        super().__init__(*args, **kwargs)
        self.power_of_2_scale = power_of_2_scale
        missing = [n for n in ("qscheme", "quant_min", "quant_max") if not hasattr(self, n)]
        if power_of_2_scale and missing:
            raise ValueError(
                f"power_of_2_scale: {type(self).__name__} has no {', '.join(missing)}, which "
                "give the zero point of a rounded scale: set them in its __init__, as "
                "torch.ao's observers do"
            )
        if power_of_2_scale and self.qscheme == torch.per_channel_affine_float_qparams:
            raise ValueError(
                "power_of_2_scale: zero points in float cannot be shifted: use "
                "torch.per_channel_affine"
            )

    def __init_subclass__(cls, **kwargs: Any):
        """Have the scales rounded that a user's class chooses by methods of its own."""
        super().__init_subclass__(**kwargs)
        for name in ("calculate_qparams", "_calculate_qparams"):
            owners = [c for c in cls.__mro__ if name in vars(c) and not _is_blockscale_s(c)]
            owner = owners[0] if owners else object
            if owners and owner.__module__.split(".")[0] not in ("torch", "torchao"):
                theirs = vars(owner)[name]
                if not hasattr(theirs, "rounds"):
                    setattr(cls, name, _rounding(theirs))

    def extra_repr(self) -> str:
        """torch.ao's, and the option."""
        theirs = super().extra_repr()  # type: ignore[misc]
        return f"{theirs}, power_of_2_scale={self.power_of_2_scale}"

    def _calculate_qparams(self, min_val: Tensor, max_val: Tensor) -> tuple[Tensor, Tensor]:
        """torch.ao's scale and zero point; or the nearest power of two, and the zero point for it.

        The power is the one that `to_format`'s Format chooses for the same range, unless it is
        below torch.ao's `eps`, and the one nearest to torch.ao's own scale.
        """
        # what TorchScript knows, too
        scale, zero_point = self._float_qparams(min_val, max_val)
        unseen = min_val.numel() == 0 or bool((min_val > max_val).any())
        if not self.power_of_2_scale or unseen:
            return scale, zero_point
        low, high = min_val.clamp(max=0.0).float(), max_val.clamp(min=0.0).float()
        symmetric = (
            self.qscheme == torch.per_tensor_symmetric
            or self.qscheme == torch.per_channel_symmetric
        )
        steps = float(self.quant_max - self.quant_min)
        if symmetric:
            reach, steps = torch.max(-low, high), steps / 2
        else:
            reach = (high - low).clamp(max=3.4028234663852886e38)
        # by a tensor, as torch divides by a number on CUDA by multiplying with its reciprocal
        quotient = torch.max(reach / torch.full_like(reach, steps), self.eps)
        scale = nearest_power(quotient).to(scale.dtype).reshape(scale.shape)
        if symmetric:
            return scale, zero_point
        first = self.quant_min - torch.round(low.reshape(scale.shape) / scale).to(zero_point.dtype)
        return scale, torch.clamp(first, self.quant_min, self.quant_max)


def _is_blockscale_s(kind: type) -> bool:
    return kind.__module__.startswith("blockscale.")


def _rounding(theirs: Any) -> Any:
    """A user's method that chooses a scale and a zero point -> the same, and `rounded`."""

    @functools.wraps(theirs)
    def choose(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(self, "power_of_2_scale", False):
            return theirs(self, *args, **kwargs)
        self.power_of_2_scale = False  # what it calls of ours gives floats: one rounding, the last
        try:
            result = theirs(self, *args, **kwargs)
        finally:
            self.power_of_2_scale = True
        return rounded(self, *result)

    del choose.__wrapped__  # or torch.jit.script would compile theirs in its place
    choose.rounds = True  # type: ignore[attr-defined]
    return choose


def rounded(observer: Any, scale: Tensor, zero_point: Tensor) -> tuple[Tensor, Tensor]:
    """A scale that a user's observer chose -> the nearest power of two, and the zero point for it.

    scale, zero_point: [] or [channels], their dtypes stay. Symmetric schemes keep the zero point;
    an affine one is chosen for the range whose lowest value had the code quant_min. Powers of two
    stay as they are, with their zero points.
    """
    power = nearest_power(scale).to(scale.dtype)
    if observer.qscheme in (torch.per_tensor_symmetric, torch.per_channel_symmetric):
        return power, zero_point
    steps = (zero_point - observer.quant_min).double() * (scale.double() / power.double())
    first = observer.quant_min + torch.round(steps).to(zero_point.dtype)
    return power, first.clamp(observer.quant_min, observer.quant_max)


class OfTorchAO(PowerOfTwoScale):
    """The same for torch.ao's observers that choose a scale."""

    _float_qparams = method(calculate_qparams(), "_float_qparams")


class MinMaxObserver(OfTorchAO, ao.MinMaxObserver):
    """The smallest and largest value of a tensor so far; as torch.ao's, with power_of_2_scale."""


class MovingAverageMinMaxObserver(OfTorchAO, ao.MovingAverageMinMaxObserver):
    """Their moving averages over batches; as torch.ao's, with power_of_2_scale."""


class PerChannelMinMaxObserver(OfTorchAO, ao.PerChannelMinMaxObserver):
    """The smallest and largest value of each channel; as torch.ao's, with power_of_2_scale."""


class MovingAveragePerChannelMinMaxObserver(OfTorchAO, ao.MovingAveragePerChannelMinMaxObserver):
    """Their moving averages over batches; as torch.ao's, with power_of_2_scale."""


class HistogramObserver(OfTorchAO, ao.HistogramObserver):
    """The range of least squared error in a histogram; as torch.ao's, with power_of_2_scale.

    The range is searched as torch.ao does, for float scales, and the scale rounded afterwards. The
    observer "mse" of bs.calibrate searches among the powers of two themselves.
    """


class PlaceholderObserver(PowerOfTwoScale, ao.PlaceholderObserver):
    """Only says what is wanted; as torch.ao's, with power_of_2_scale."""
