"""What every quantized layer shares: a weight, and perhaps quantized inputs and outputs."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blockscale.core.recipe import Scheme
from blockscale.ops.modules.store import QInput, QWeight
from blockscale.ops.op import seed_tensor

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
)


class QLayer(nn.Module):
    """A layer whose weight is a QWeight. Subclasses say which float layers they replace.

    `weight` holds the codes, `input` and `output` the quantizers of the layer's input and output,
    if any. The bias stays a float parameter.
    """

    layout: ClassVar[str] = "plain"
    takes_input: ClassVar[bool] = True  # False for indices

    weight: QWeight
    input: QInput | None
    output: QInput | None

    def __init__(self, weight: QWeight, bias: nn.Parameter | None, scheme: Scheme):
        super().__init__()
        self.weight = weight
        self.register_parameter("bias", bias)
        takes = scheme.input is not None and self.takes_input
        self.input = QInput(scheme.input) if takes and scheme.input else None
        self.output = QInput(scheme.output) if scheme.output else None

    @classmethod
    def refuses(cls, module: nn.Module) -> str | None:
        """Why this float layer cannot be replaced, or None."""
        del module
        return None

    @classmethod
    def from_float(cls, module: Any, weight: QWeight, scheme: Scheme) -> "QLayer":
        """The quantized layer in place of `module`, with its weight quantized as given."""
        return cls(weight, module.bias, scheme)

    def take_place_of(self, module: nn.Module) -> None:
        """Take over a float layer's mode and hooks; the hooks' handles still remove them."""
        self.train(module.training)
        for name in _HOOKS:
            object.__setattr__(self, name, getattr(module, name))

    def of_input(self, x: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, str, Any]:
        """The input's scale parts, format ("" for float) and seed, as ops take them."""
        if self.input is None:
            return None, None, None, "", None
        drawn = self.input.format.rounding == "stochastic"
        seed = seed_tensor(None, x.device) if drawn else None
        return *self.input.for_rank(x.ndim), self.input.fmt, seed

    def finished(self, y: Tensor) -> Tensor:
        """y through the output's quantizer, if there is one."""
        return y if self.output is None else self.output(y)

    @property
    def bias_bytes(self) -> int:
        """Bytes of the bias, 0 without one."""
        bias = self._parameters["bias"]
        return 0 if bias is None else bias.nbytes

    def dequantize_weight(self, dtype: torch.dtype | None = None) -> Tensor:
        """The float weight, as the layer that was replaced had it."""
        return self.weight.dequantize(dtype)
