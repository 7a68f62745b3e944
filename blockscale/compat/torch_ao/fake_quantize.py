# SPDX-License-Identifier: BSD-3-Clause
"""torch.ao's fake quantizers, whose observers take `power_of_2_scale` among their arguments."""

from typing import TYPE_CHECKING, Any

from torch import Tensor, fx, nn
from torch.ao import quantization as ao

from blockscale.compat.torch_ao.blocks import FormatObserver, format_as_dtype, spec_of
from blockscale.compat.torch_ao.observers import MovingAverageMinMaxObserver, method
from blockscale.compat.torch_ao.option import unwrap, with_option
from blockscale.core.format import Format
from blockscale.core.reference import QParams
from blockscale.core.torch_private import load_from_state_dict, save_to_state_dict

if TYPE_CHECKING:
    from collections.abc import Callable


def taking(observer: Any, arguments: dict[str, Any]) -> Any:
    """The observer that takes these arguments: torch.ao's own, unless the option is among them."""
    return with_option(observer) if "power_of_2_scale" in arguments else observer


def given_format(observer: Any, arguments: dict[str, Any]) -> Format | None:
    """The format among a fake quantizer's arguments or its observer's; None without one."""
    return format_as_dtype({**unwrap(observer)[1], **arguments})


class FakeQuantize(ao.FakeQuantize):
    """As torch.ao's; `power_of_2_scale=True` goes to the observer like its other arguments.

    With a format as `dtype` ("bfp8", a spelling, a Format) it is a FormatFakeQuantize.
    """

    def __new__(cls, observer: Any = MovingAverageMinMaxObserver, *_: Any, **kwargs: Any) -> Any:
        """One of the class; of a format, a FormatFakeQuantize."""
        if cls is FormatFakeQuantize or given_format(observer, kwargs) is None:
            return super().__new__(cls)
        if cls is not FakeQuantize:
            raise TypeError(
                f"{cls.__name__} fake quantizes by its own rules for torch's dtypes: use "
                "FakeQuantize itself where dtype is a format"
            )
        return super().__new__(FormatFakeQuantize)

    def __init__(
        self,
        observer: Any = MovingAverageMinMaxObserver,
        quant_min: int | None = None,
        quant_max: int | None = None,
        is_dynamic: bool = False,
        **observer_kwargs: Any,
    ):
        observer = taking(observer, observer_kwargs)
        super().__init__(observer, quant_min, quant_max, is_dynamic, **observer_kwargs)


class FormatFakeQuantize(FakeQuantize):
    """A fake quantizer of torch.ao's kind for any format: what bs.fake_quantize gives, with its
    straight-through gradient.

    observer: one of torch.ao's classes or ours, by which static ranges are chosen; scales of blocks
        are chosen from each tensor
    dtype, part, ch_axis, power_of_2_scale: as FormatObserver's

    Raises as that; TypeError for a quant_min and quant_max, which the format says, and for
    `is_dynamic`: what is chosen from each tensor is a format of rows or blocks.
    """

    def __init__(
        self,
        observer: Any = MovingAverageMinMaxObserver,
        quant_min: int | None = None,
        quant_max: int | None = None,
        is_dynamic: bool = False,
        **observer_kwargs: Any,
    ):
        ao.FakeQuantizeBase.__init__(self)
        kind, arguments, calls = unwrap(observer)
        if isinstance(observer, str):
            raise TypeError(
                f"observer={observer!r}: torch.ao's fake quantizers take a class, such as "
                f"HistogramObserver"
            )
        arguments = {**arguments, **{k: make() for k, make in calls.items()}, **observer_kwargs}
        spec = spec_of(kind, arguments)
        data: dict[str, Any] = {
            "quant_min": quant_min,
            "quant_max": quant_max,
            "is_dynamic": is_dynamic,
        }
        of_statistics = ("averaging_constant", "bins")
        rest = {name: value for name, value in arguments.items() if name not in of_statistics}
        self.activation_post_process = FormatObserver(spec=spec, **rest, **data)
        for name in ("dtype", "qscheme", "quant_min", "quant_max", "is_dynamic", "ch_axis", "part"):
            setattr(self, name, getattr(self.activation_post_process, name))

    @property
    def format(self) -> Format:
        """What tensors are quantized in."""
        return self.activation_post_process.format

    def forward(self, X: Tensor) -> Tensor:  # noqa: N803 - torch.ao's name
        """X [...] float -> its values after a round trip, in its dtype; as it is while a static
        scale has seen no data."""
        observer = self.activation_post_process
        if self.observer_enabled[0] == 1:
            observer(X)
        if self.fake_quant_enabled[0] == 1 and not observer.missing:
            return observer.values()(X)
        return X

    def qparams(self) -> QParams:
        """The parts of a static scale, as FormatObserver's."""
        return self.activation_post_process.qparams()

    def values(self, layout: str | None = None) -> nn.Module:
        """A module that gives what this does now, as FormatObserver's."""
        return self.activation_post_process.values(layout)

    def convert(self, model: fx.GraphModule, node: fx.Node) -> None:
        """Write `values` in the node's place, as FormatObserver's."""
        self.activation_post_process.convert(model, node)

    def extra_repr(self) -> str:
        """The switches; the observer has the rest."""
        return (
            f"fake_quant_enabled={self.fake_quant_enabled}, "
            f"observer_enabled={self.observer_enabled}"
        )

    # torch.ao's keep a scale and a zero point here; a format's are the observer's
    _save_to_state_dict = save_to_state_dict
    _load_from_state_dict = load_from_state_dict


class InTurn:
    """A fused fake quantizer whose two halves run one after the other for powers of two, because
    torch's fused kernel chooses the scale inside."""

    if TYPE_CHECKING:
        activation_post_process: nn.Module
        _in_turn: Callable[[Tensor], Tensor]
        _fused: Callable[[Tensor], Tensor]

    def forward(self, X: Tensor) -> Tensor:  # noqa: N803 - torch.ao's name
        """X [...] float -> its values after a round trip."""
        if getattr(self.activation_post_process, "power_of_2_scale", False):
            return self._in_turn(X)
        return self._fused(X)


class FusedMovingAvgObsFakeQuantize(InTurn, ao.FusedMovingAvgObsFakeQuantize):
    """As torch.ao's. With `power_of_2_scale` its two halves run one after the other."""

    def __new__(cls, observer: Any = MovingAverageMinMaxObserver, *args: Any, **kwargs: Any) -> Any:
        """One of the class; of a format, a FormatFakeQuantize, which is not fused."""
        if given_format(observer, kwargs) is None:
            return super().__new__(cls)
        return FakeQuantize(observer, *args, **kwargs)

    _in_turn = method(ao.FakeQuantize.forward, "_in_turn")
    _fused = method(ao.FusedMovingAvgObsFakeQuantize.forward, "_fused")

    def __init__(
        self,
        observer: Any = MovingAverageMinMaxObserver,
        quant_min: int = 0,
        quant_max: int = 255,
        **observer_kwargs: Any,
    ):
        observer = taking(observer, observer_kwargs)
        super().__init__(observer, quant_min, quant_max, **observer_kwargs)
