"""torch.ao's fake quantizers, whose observers take `power_of_2_scale` among their arguments."""

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.ao import quantization as ao

from blockscale.compat.torch_ao.observers import MovingAverageMinMaxObserver, method
from blockscale.compat.torch_ao.option import with_option

if TYPE_CHECKING:
    from collections.abc import Callable


def taking(observer: Any, arguments: dict[str, Any]) -> Any:
    """The observer that takes these arguments: torch.ao's own, unless the option is among them."""
    return with_option(observer) if "power_of_2_scale" in arguments else observer


class FakeQuantize(ao.FakeQuantize):
    """As torch.ao's; `power_of_2_scale=True` goes to the observer like its other arguments."""

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
