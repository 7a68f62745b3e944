# SPDX-License-Identifier: BSD-3-Clause
"""What every quantized layer shares: a weight, perhaps quantized inputs and outputs, and perhaps a
Before, which changes the input and the weight so that they quantize better."""

from copy import deepcopy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blockscale.core.arithmetic.sums import SumInteger, sum_steps
from blockscale.core.format import Format
from blockscale.core.operand import UNQUANTIZED, Quantizer
from blockscale.core.pack import stored_shape
from blockscale.core.recipe import BiasFormat, Scheme
from blockscale.kernels.registry import batch_invariant
from blockscale.layers.before import Before
from blockscale.layers.buffers import Buffers
from blockscale.layers.store import QInput, QWeight, step_of_input, steps_of_outputs
from blockscale.layers.weight_source import Source, shared, traced, write_error
from blockscale.layers.weight_tensor import one_read
from blockscale.ops.batch_rows import check_rows

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

# The layers of torch.nn that quantized ones replace.
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
PARENTS = (nn.Linear, nn.Embedding, nn.EmbeddingBag, *_CONVOLUTIONS, *_TRANSPOSED)


def parent_of(kind: type) -> type[nn.Module] | None:
    """The layer of torch.nn that it is, or is a subclass of, among those that are replaced."""
    return next((each for each in kind.__mro__ if each in PARENTS), None)


class QBias(Buffers):
    """A bias [n] in integers of its layer's sums: buffers `codes` [n], and `scale` [n] float32, the
    steps of the sums. The scale is kept because that of outputs whose weights are all zero says
    nothing (core.arithmetic.sums.live_steps).

    kind, shape, dtype: what it is in, and of the float bias
    """

    codes: Tensor
    scale: Tensor
    dtype: torch.dtype

    def __init__(self, codes: Tensor, scale: Tensor, kind: SumInteger, dtype: torch.dtype):
        super().__init__()
        self.kind, self.fmt, self.layout, self.name = kind, str(kind), "plain", ""
        self.shape, self.dtype = codes.shape, dtype
        self.register_buffer("codes", codes)
        self.register_buffer("scale", scale)

    def read(self) -> Tensor:
        """The bias for code that computes with it by itself, as QWeight.read gives a weight."""
        place = (self.shape, self.dtype, self.codes.device, self.name)
        source = Source(*place, None, "plain", False, self.dequantize, self)
        return self.dequantize() if traced() else one_read(self, source)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return self.codes.nbytes + self.scale.nbytes

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The bias [n] that its layer adds, by default in the dtype that the float bias had."""
        part: dict[str, Any] = self._buffers
        values = self.kind.decode(part["codes"], part["scale"])
        dtype = dtype or self.dtype
        return values if dtype is torch.float32 else values.to(dtype)

    def extra_repr(self) -> str:
        return f"'{self.fmt}', shape={tuple(self.shape)}"


class QLayer(nn.Module):
    """A layer whose weight is a QWeight. Subclasses say which float layers they replace.

    `qweight` holds the codes, `input` and `output` the quantizers of the layer's input and output,
    if any. The bias is a float parameter, or holds codes as well, or is None. `before`, if any,
    changes the input before it is quantized; `qweight` is then the weight of that changed input.
    `weight` and `bias` are what code reads that computes with them without calling the layer.
    """

    layout: ClassVar[str] = "plain"
    takes_input: ClassVar[bool] = True  # False for indices

    input: QInput | None
    output: QInput | None
    before: Before | None

    def __init__(self, weight: QWeight, bias: nn.Parameter | None, scheme: Scheme):
        super().__init__()
        self._modules["weight"] = weight
        self.register_parameter("bias", bias)
        takes = scheme.input is not None and self.takes_input
        self.input = QInput(scheme.input) if takes and scheme.input else None
        self.output = QInput(scheme.output) if scheme.output else None
        self.before = None

    @property
    def qweight(self) -> QWeight:
        """The codes of the weight; `weight` in the module's state."""
        return self._modules["weight"]  # type: ignore[return-value]

    @property
    def weight(self) -> Tensor:
        """The float weight as the layer's own input sees it, for code that does not call the layer:
        a tensor that products with our kernels know (blockscale.layers.weight_tensor)."""
        modules = self.__dict__["_modules"]
        if "weight" not in modules:
            raise AttributeError(f"this {type(self).__name__} has no weight yet")
        qweight: QWeight = modules["weight"]
        return qweight.read(modules.get("before"))

    @property
    def bias(self) -> Tensor | None:
        """The bias [n] that the layer adds, as a parameter or read from its codes; or None."""
        parameters, modules = self.__dict__["_parameters"], self.__dict__["_modules"]
        if "bias" in parameters:
            plain: Tensor | None = parameters["bias"]
            return plain
        if "bias" not in modules:
            raise AttributeError(f"this {type(self).__name__} has no bias yet")
        holder: QBias | QWeight = modules["bias"]
        return holder.read()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("weight", "bias") and isinstance(value, Tensor):
            item: Any = self.__dict__["_modules"].get(name)
            if item is not None:
                value = self._shared(item, value)
        super().__setattr__(name, value)

    def _shared(self, item: Any, value: Any) -> Any:
        """`shared`; raises RuntimeError as well where a transform changed the weight."""
        owner = shared(item, value)
        transforms = self.before is not None or value.source.operand is None
        if owner is not item and item is self.qweight and transforms:
            text = "an assignment of a weight that a transform changed"
            raise write_error(text, self.qweight.source())
        return owner

    @classmethod
    def layout_of(cls, module: Any) -> str:
        """How the weight of this float layer is stored (blockscale.core.pack)."""
        del module
        return cls.layout

    @classmethod
    def refuses(cls, module: nn.Module) -> str | None:
        """Why this float layer cannot be replaced, or None."""
        del module
        return None

    @classmethod
    def usable(cls, scheme: Scheme) -> tuple[Scheme, str]:
        """What of a scheme it can follow, and a note on what it leaves in float, perhaps empty."""
        return scheme, ""

    @classmethod
    def features(cls, module: Any) -> int:
        """The size of the input's feature dimension, of a float layer or of one of this class."""
        return stored_shape(tuple(module.weight.shape), cls.layout)[-1]

    @classmethod
    def refuses_before(cls, module: Any, before: Before) -> str | None:
        """Why `before` cannot stand before this layer, float or quantized, or None."""
        if not cls.takes_input:
            return "its input is indices, which cannot be transformed"
        if before.features != cls.features(module):
            return (
                f"{before.fmt} is for {before.features} features, and the layer has "
                f"{cls.features(module)}"
            )
        return None

    @classmethod
    def from_float(cls, module: Any, weight: QWeight, scheme: Scheme) -> "QLayer":
        """The quantized layer in place of `module`, with its weight quantized as given."""
        return cls(weight, module.bias, scheme)

    @classmethod
    def slow_once(cls, module: Any, input_fmt: str, weight_fmt: str) -> str:
        """What `slow` will say of a float layer once it is quantized to these formats."""
        del module, input_fmt, weight_fmt
        return ""

    def slow(self) -> str:
        """Where its kernels were measured not to be faster than the float layer: by how much, and
        why; else empty."""
        return ""

    def take_place_of(self, module: nn.Module) -> None:
        """Take over a float layer's mode and hooks; the hooks' handles still remove them."""
        self.train(module.training)
        for name in _HOOKS:
            object.__setattr__(self, name, getattr(module, name))

    def set_before(self, before: Before) -> None:
        """Put a copy of `before` in front; `weight` has to be what its `to_weight` gave.

        Raises ValueError where it does not fit.
        """
        if reason := self.refuses_before(self, before):
            raise ValueError(f"{type(self).__name__}: {reason}")
        self.before = deepcopy(before).to(self.qweight.device)  # layers may be on several devices

    def prepare_input(self, x: Tensor) -> Tensor:
        """x through what stands before the layer, if anything does."""
        return x if self.before is None else self.before(x)

    def of_input(self, x: Tensor) -> Quantizer:
        """How the input x is quantized, as ops take it."""
        quantizer: Any = self._modules.get("input")  # not as an attribute: see QLinear.forward
        if quantizer is None:
            return UNQUANTIZED
        if not torch.compiler.is_compiling() and batch_invariant():
            self._check_rows("input", quantizer, x.ndim)
        return quantizer.of(x)  # type: ignore[no-any-return]

    def rows_of(self, rank: int) -> int:
        """How many dimensions of an input of `rank`, from the first on, say which row it is."""
        return rank - 1

    def _check_rows(self, what: str, quantizer: QInput, rank: int) -> None:
        """Raise RuntimeError where rows of the input or output are not quantized by themselves."""
        if quantizer.static and not quantizer.format.gives_outer:
            return
        name = self.qweight.name.removesuffix(".weight") or type(self).__name__
        outer = not quantizer.format.gives_outer
        whose = f"the {what} of the layer {name!r}"
        check_rows(whose, quantizer.format, rank, self.rows_of(rank), outer=outer)

    def like(self, x: Tensor, y: Tensor) -> Tensor:
        """What it gives for the input x of a call of the float layer that gave y. No hooks run."""
        del y
        tensor: Tensor = self.forward(x)
        return tensor

    def finish_output(self, y: Tensor) -> Tensor:
        """y through the output's quantizer, if there is one."""
        if self.output is None:
            return y
        if not torch.compiler.is_compiling() and batch_invariant():
            self._check_rows("output", self.output, y.ndim)
        quantized: Tensor = self.output(y)
        return quantized

    @property
    def quantized_bias(self) -> QBias | QWeight | None:
        """The bias if it holds codes, else None."""
        bias: QBias | QWeight | None = self._modules.get("bias")  # type: ignore[assignment]
        return bias

    def set_bias(self, bias: QBias | QWeight) -> None:
        """Hold a quantized bias in the place of the float one."""
        self._parameters.pop("bias", None)
        self._modules["bias"] = bias

    def set_float_bias(self, bias: nn.Parameter) -> None:
        """Hold a float bias in the place of a quantized one, or where there was none."""
        self._modules.pop("bias", None)
        self._parameters["bias"] = bias

    def added_bias(self) -> Tensor | None:
        """The bias [n] that the layer adds: a quantized one as its values, in float32."""
        parameters = self._parameters  # not as attributes: see QLinear.forward
        if "bias" in parameters:
            plain: Tensor | None = parameters["bias"]
            return plain
        bias: Any = self._modules["bias"]
        values: Tensor = bias.dequantize(torch.float32)
        return values

    @property
    def bias_bytes(self) -> int:
        """Bytes of the bias, 0 without one."""
        return 0 if self.bias is None else self.bias.nbytes

    def dequantize_weight(self, dtype: torch.dtype | None = None) -> Tensor:
        """The weight as the float layer had it, so for its own input, not for what `before` gives.

        By default in the dtype that it had.
        """
        return self.qweight.undone(self.before, dtype)


# The bias of a layer in integers of its sums.

DYNAMIC = (
    "the scale of its input is dynamic, so its sums have no fixed step: use a static scale "
    "(bs.calibrate chooses it)"
)


def quantize_bias(layer: QLayer, fmt: BiasFormat, seed: int | None = None) -> None:
    """Put the codes of a layer's float bias in its place.

    fmt: for a SumInteger the layer needs a static input of one scale, and its final weight.
    seed: for a format that rounds stochastically.
    """
    bias = _float_bias(layer)
    if isinstance(fmt, Format):
        layer.set_bias(QWeight.quantize(bias, fmt, seed=seed))
        return
    steps = steps_of_sums(layer)
    layer.set_bias(QBias(fmt.encode(bias, steps), steps, fmt, bias.dtype))


def notes_on_bias(layer: QLayer, fmt: BiasFormat) -> list[str]:
    """What a user should know of a float bias that `quantize_bias` is to quantize."""
    bias, notes = _float_bias(layer), []
    if odd := int((~bias.isfinite()).sum()):
        notes.append(f"{odd} of {bias.numel()} biases are NaN or infinite")
    if isinstance(fmt, Format):
        return notes
    if beyond := int((bias.isfinite() & ~fmt.in_range(bias, steps_of_sums(layer))).sum()):
        notes.append(
            f"{beyond} of {bias.numel()} biases are more steps (input scale times weight "
            f"scale) than {fmt} holds, and saturate: use larger scales, or leave this bias in "
            "float"
        )
    return notes


def _float_bias(layer: QLayer) -> Tensor:
    bias = layer._parameters["bias"]
    assert bias is not None
    return bias.detach()


def steps_of_sums(layer: QLayer) -> Tensor:
    """The step of each output's sum [n] float32: the static input's times the weight's.

    Raises ValueError for a dynamic input.
    """
    if layer.input is None or not layer.input.static:
        raise ValueError(f"{type(layer).__name__}: {DYNAMIC}")
    weight = layer.qweight.tensor
    steps = steps_of_outputs(weight.dequantize(), weight.qparams, weight.format)
    return sum_steps(step_of_input(layer.input), steps)
