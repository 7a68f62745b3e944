# SPDX-License-Identifier: BSD-3-Clause
"""What every layer in training shares: the float layer's own parameters, and fake quantizers."""

from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from blockscale.core.arithmetic.sums import sum_steps
from blockscale.core.recipe import Scheme
from blockscale.core.untrusted import kind_of
from blockscale.layers.layer import QLayer, quantize_bias
from blockscale.layers.store import QWeight, step_of_input
from blockscale.qat.constraints import BiasQuantizer
from blockscale.qat.quantizers import ActivationQuantizer, Quantizers, WeightQuantizer

_FLAGS = ("quantizing", "observing", "norm_frozen")
_PARTS = ("weight_quantizer", "input_quantizer", "output_quantizer")


class Features(NamedTuple):
    """How many features a layer's input and its output have; an input of indices has 0."""

    input: int
    output: int


class QATLayer(nn.Module):
    """A float layer that computes as its quantized layer will. It is the same object as before,
    with another class: parameters, hooks, mode and names are what they were.

    In evaluation without gradients it is the quantized layer: same weights, same op, same bits.
    Otherwise it multiplies fake-quantized floats in float32, or as torch.autocast says.

    quantizing, observing: whether it quantizes, and whether its observers look (while training).
    norm_frozen: whether a batch norm that is folded in uses its running statistics in training.
    scheme: the formats of its weight, input and output
    """

    kind: ClassVar[type[QLayer]]

    weight: Tensor
    bias: Any
    scheme: Scheme
    float_class: type[nn.Module]
    quantizing: bool
    observing: bool
    norm_frozen: bool
    weight_quantizer: WeightQuantizer
    input_quantizer: ActivationQuantizer | None
    output_quantizer: ActivationQuantizer | None
    bias_quantizer: BiasQuantizer | None

    @classmethod
    def refuses(cls, module: Any) -> str | None:
        """Why this float layer cannot be trained so, or None."""
        del module
        return None

    @classmethod
    def features(cls, module: Any) -> Features:
        """How many features an input and an output of this float layer have."""
        raise NotImplementedError

    @classmethod
    def replace(
        cls,
        module: Any,
        scheme: Scheme,
        quantizers: Quantizers,
        bias: BiasQuantizer | None = None,
    ) -> Self:
        """Turn a float layer into this class; it is the same object, which is returned."""
        float_class = type(module)
        vars(module).pop("forward", None)  # the float class's own (layers.decisions), if any
        module.__class__ = cls
        module.float_class, module.scheme = float_class, scheme
        module.quantizing = module.observing = True
        module.norm_frozen = False
        for name, quantizer in zip((*_PARTS, "bias_quantizer"), (*quantizers, bias), strict=True):
            module.register_module(name, quantizer)
            if quantizer is not None:
                quantizer.train(module.training)
        layer: Self = module
        return layer

    def fold(self, norm: nn.Module) -> None:
        """Include the batch norm that follows. Raises NotImplementedError but for convolutions."""
        raise NotImplementedError(f"no batch norm can be folded into {kind_of(self)}")

    # --- what it computes

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        """As the float layer's, in the same shapes; `more` is what else it takes."""
        if self.deployable and (self.ready or x.numel()):
            y: Tensor = self.as_quantized()(x, *more)
            return y
        return self.simulate(x, *more)

    @property
    def deployable(self) -> bool:
        """Whether the quantized layer itself can run: nothing has to be learned or observed."""
        return self.quantizing and not (self.training or torch.is_grad_enabled())

    @property
    def ready(self) -> bool:
        """Whether its static scales have values."""
        return all(part is None or part.ready for part in self.quantizers())

    @property
    def padding_row(self) -> int | None:
        """The row of the weight's blocks that is zero on purpose (an embedding's padding_idx)."""
        return None

    def simulate(self, x: Tensor, *more: Any) -> Tensor:
        """The layer in floats, with every quantized tensor through its fake quantizer."""
        if self.quantizing:
            y = self._compute(x, *more)
        else:
            self._observe(self.input_quantizer, self._features_last(x))
            y = self._float(x, *more)
        if self.output_quantizer is None:
            return y
        last = self._features_last(y)
        self._observe(self.output_quantizer, last)
        return self._features_back(self.output_quantizer(last)) if self.quantizing else y

    def _compute(self, x: Tensor, *more: Any) -> Tensor:
        """The layer of the fake-quantized input and weight."""
        raise NotImplementedError

    def _float(self, x: Tensor, *more: Any) -> Tensor:
        """The float layer."""
        y: Tensor = self.float_class.forward(self, x, *more)
        return y

    def _features_last(self, x: Tensor) -> Tensor:
        return x

    def _features_back(self, x: Tensor) -> Tensor:
        return x

    def _input(self, x: Tensor) -> Tensor:
        """x, features last -> float32 values that its format leaves of it."""
        wide = x.to(torch.float32)
        if self.input_quantizer is None:
            return wide
        self._observe(self.input_quantizer, wide)
        values: Tensor = self.input_quantizer(wide)
        return values

    def _observe(self, quantizer: ActivationQuantizer | None, x: Tensor) -> None:
        if quantizer is not None and self.training and self.observing:
            quantizer.observe(x)

    def _like(self, y: Tensor, x: Tensor) -> Tensor:
        """y in the dtype that the layer returns for x: autocast decides, else x has it."""
        return y if torch.is_autocast_enabled(x.device.type) else y.to(x.dtype)

    def _bias_values(
        self, bias: Tensor | None, weight: Tensor, *, fixed: bool = False
    ) -> Tensor | None:
        """bias [n] -> the values that sums get, float32; call it after the input was quantized.

        weight: the float weight that is quantized; fixed: as BiasQuantizer's
        """
        if bias is None or self.bias_quantizer is None or not self._has_steps():
            return None if bias is None else bias.to(torch.float32)

        def steps() -> Tensor:
            assert self.input_quantizer is not None  # or there would be no such format
            names = step_of_input(self.input_quantizer.for_inference())
            return sum_steps(names, self.weight_quantizer.steps(weight))

        values: Tensor = self.bias_quantizer(bias, steps, fixed=fixed)
        return values

    def _has_steps(self) -> bool:
        """Whether the input has a scale, without which a bias has no steps: from the first batch on
        that has a range."""
        return self.input_quantizer is None or self.input_quantizer.ready

    # --- what it becomes

    def float_weight(self) -> Tensor:
        """The float weight that is quantized."""
        return self.weight

    def quantized_weight(self) -> QWeight:
        """The weight as the quantized layer holds it now."""
        return self.weight_quantizer.quantize(self.float_weight())

    def as_quantized(self, weight: QWeight | None = None) -> QLayer:
        """The quantized layer that this one stands for now, with `weight` if it is shared."""
        layer = self.with_float_bias(weight)
        if self.bias_quantizer is not None:
            quantize_bias(layer, self.bias_quantizer.format, self.bias_quantizer.seed)
        return layer

    def with_float_bias(self, weight: QWeight | None = None) -> QLayer:
        """The same, before its bias is quantized."""
        weight = self.quantized_weight() if weight is None else weight
        layer = self.kind.from_float(self, weight, self.scheme)
        if layer.input is not None and self.input_quantizer is not None:
            layer.input = self.input_quantizer.for_inference()
        if layer.output is not None and self.output_quantizer is not None:
            layer.output = self.output_quantizer.for_inference()
        return layer

    # --- its state: flags, and the weight's format to compare

    def _flags(self) -> list[bool]:
        own = [getattr(self, name) for name in _FLAGS]
        return own + [part is None or part.ready for part in self.quantizers()]

    def quantizers(self) -> Quantizers:
        """Those of its weight, input and output."""
        return Quantizers(self.weight_quantizer, self.input_quantizer, self.output_quantizer)

    def get_extra_state(self) -> Tensor:
        """Flags and the weight's format as bytes: a tensor, which every file format can hold."""
        spelling = str(self.weight_quantizer.format).encode()
        return torch.tensor([*self._flags(), *spelling], dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Raises ValueError for the state of a layer with another format."""
        count = len(self._flags())
        spelling = bytes(state[count:].tolist()).decode(errors="replace")
        if spelling != str(self.weight_quantizer.format):
            raise ValueError(
                f"the weight has the format {self.weight_quantizer.format}, and the state was "
                f"saved with {spelling}: prepare the model with the same recipe"
            )
        flags = [bool(flag) for flag in state[:count].tolist()]
        for name in _FLAGS:
            setattr(self, name, flags.pop(0))
        for part, ready in zip(self.quantizers(), flags, strict=True):
            if part is not None:
                part.ready = ready

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **others: Any
    ) -> None:
        key = f"{prefix}_extra_state"
        if key not in state_dict and f"{prefix}weight" in state_dict:  # a float model's state
            own = {k: v for k, v in self._quantizer_state(prefix).items() if k not in state_dict}
            state_dict.update(own)
            state_dict[key] = self.get_extra_state()
            super()._load_from_state_dict(state_dict, prefix, *rest, **others)
            self.weight_quantizer.restart()
            return
        super()._load_from_state_dict(state_dict, prefix, *rest, **others)

    def _quantizer_state(self, prefix: str) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for name, part in zip(_PARTS, self.quantizers(), strict=True):
            if part is not None:
                state |= part.state_dict(prefix=f"{prefix}{name}.")
        return state
