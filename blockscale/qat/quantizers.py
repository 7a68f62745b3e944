# SPDX-License-Identifier: BSD-3-Clause
"""Fake quantizers: a weight's, and an input's or output's, as QAT layers hold them."""

import warnings
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from blockscale.calibration.observers import Observer
from blockscale.core.format import Format
from blockscale.core.operand import quantizer
from blockscale.core.pack import grouped_layout, stored_shape, to_stored
from blockscale.core.reference import QParams, qparams_from_range
from blockscale.core.torch_private import ConvTransposeNd, graph_task
from blockscale.core.untrusted import kind_of
from blockscale.layers.store import QInput, QWeight, steps_of_outputs
from blockscale.ops import primitives
from blockscale.ops.quantize import fake_quantize
from blockscale.ops.seed import seed_tensor
from blockscale.ops.tensor import QTensor
from blockscale.qat.learned import LearnedScale

# Layers that torch.ao's flows prepared with formats of ours, as float layers again.
#
# torch.ao keeps what quantizes a weight in its layer (`weight_fake_quant`, in training) or makes it
# of the layer's `qconfig`. What has a format as its dtype (blockscale.compat.torch_ao) has a
# `format` and `values(layout)`, a module that rounds a tensor to the format.


def weight_quantizer(layer: nn.Module) -> Any:
    """What quantizes the layer's weight in a format; None without one, and for the vectors of norms
    and activations, which torch.ao leaves in float.

    Raises ValueError for a convolution that trained in blocks of another layout.
    """
    if is_trained(layer):
        value: Any = layer.weight_fake_quant
        if getattr(value, "part", "weight") != "weight" and layer.weight.ndim > 2:  # type: ignore[operator]
            raise ValueError(
                f"{kind_of(layer)} has trained with its weight in {value.format} along "
                "the last dimension, as activations are, and layers store input channels "
                "last: pass QConfig of blockscale.compat.torch_ao, or "
                "FakeQuantize.with_args(part='weight')"
            )
    else:
        constructor = getattr(getattr(layer, "qconfig", None), "weight", None)
        own: Any = weighted(layer)._parameters
        matrices = [w for name, w in own.items() if name.startswith("weight") and w.ndim > 1]
        value = constructor() if constructor is not None and matrices else None
    return value if hasattr(value, "values") else None


def is_trained(layer: nn.Module) -> bool:
    """Whether torch.ao made it a layer that trains with a fake quantized weight."""
    return hasattr(layer, "weight_fake_quant")


def float_layer(layer: nn.Module) -> nn.Module:
    """A layer that trains as the float layer that it stands for, its batch norm folded; others as
    they are."""
    if not is_trained(layer):
        return layer
    module: nn.Module = layer.to_float()  # type: ignore[operator]
    return module.train(layer.training)


def weighted(layer: nn.Module) -> Any:
    """The layer with the weight: of a fused one (Conv2d with ReLU and so on) the first."""
    return layer[0] if isinstance(layer, nn.Sequential) and len(layer) else layer


def layout_of(layer: Any) -> str:
    """How the layer's weight is stored (blockscale.core.pack)."""
    if isinstance(layer, ConvTransposeNd):
        return grouped_layout(layer.groups)
    return "channels_last" if layer.weight.ndim > 2 else "plain"


def replace_layer(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Put a layer in the place of the one of that name."""
    above, _, last = name.rpartition(".")
    setattr(model.get_submodule(above), last, layer)


class WeightQuantizer(nn.Module):
    """A weight through its format. Its scale is chosen from it each time, or learned.

    seed: for formats that round stochastically: of evaluation and of the quantized model. Training
        draws a new one at each call, from torch's default generator.
    """

    def __init__(
        self, fmt: Format, layout: str, shape: tuple[int, ...], seed: int, learn: str | None
    ):
        super().__init__()
        self.format, self.layout, self.shape, self.seed = fmt, layout, tuple(shape), seed
        scales = fmt.block.scale_shape(stored_shape(shape, layout))
        self.learned = LearnedScale(fmt, scales, learn) if learn else None
        self.ready = self.learned is None  # whether the learned scale has begun

    def start(self, weight: Tensor) -> None:
        """Let the learned scale begin with the float weight [shape], unless it has begun."""
        if self.learned is not None and not self.ready:
            self.learned.start(self._stored(weight.detach()))
            self.ready = True

    def restart(self) -> None:
        """Let the learned scale begin anew, with the weight that comes next."""
        if self.learned is not None:
            self.learned.restart()
            self.ready = False

    def forward(self, weight: Tensor) -> Tensor:
        """The float weight [shape] -> its values in the format, float32, in the stored layout."""
        self.start(weight)
        stored, seed = self._stored(weight).to(torch.float32), None
        if self.format.rounding == "stochastic":
            seed = seed_tensor(None if self.training else self.seed, weight.device)
        if self.learned is None:
            return fake_quantize(stored, self.format, seed=seed)
        qparams = self._learned(stored, keep=self.training)
        shared = stored.numel() / max(qparams.scale.numel(), 1)
        values: Tensor = self.learned(stored, qparams, shared, seed)
        return values

    def quantize(self, weight: Tensor) -> QWeight:
        """The float weight [shape] -> what the quantized layer holds."""
        self.start(weight)
        if self.learned is None:
            return QWeight.quantize(weight, self.format, self.layout, self._seed())
        stored = self._stored(weight.detach())
        qparams = self._learned(stored)
        seed = None if self._seed() is None else seed_tensor(self.seed, weight.device)
        codes = primitives.quantize(stored, quantizer(qparams, self.format, seed))
        q = QTensor(codes, qparams, self.format, stored.shape[-1])
        return QWeight(q, tuple(weight.shape), weight.dtype, self.layout)

    @torch.no_grad()
    def steps(self, weight: Tensor) -> Tensor:
        """The float weight [shape] -> the step of each output [n], as the quantized layer has it.

        For formats with one step for each output. Draws no random numbers.
        """
        self.start(weight)
        stored, fmt = self._stored(weight.detach()).to(torch.float32), self.format.deterministic
        if self.learned is None:
            qparams = primitives.from_list(primitives.choose_qparams(stored, str(fmt)), fmt)
        else:
            qparams = self._learned(stored)
        values = primitives.fake_quantize(stored, quantizer(qparams, fmt))
        return steps_of_outputs(values, qparams, fmt)

    @torch.no_grad()
    def settle(self, weight: Tensor) -> None:
        """Let learned scales begin with the float weight that have not begun, or are too small."""
        if self.learned is not None and self.ready:
            self.learned.grow(self._stored(weight.detach()).to(torch.float32))

    def _learned(self, stored: Tensor, *, keep: bool = False) -> QParams:
        """The learned scales of the stored weight, with those that begin with it.

        keep: also from now on
        """
        assert self.learned is not None
        origin, restarts = self.learned.growth(stored.detach().to(torch.float32))
        if keep and not in_backward():
            self.learned.keep(origin, restarts)
        return self.learned.qparams(origin)

    def _seed(self) -> int | None:
        return self.seed if self.format.rounding == "stochastic" else None

    def _stored(self, weight: Tensor) -> Tensor:
        return to_stored(weight, self.layout).contiguous()

    def extra_repr(self) -> str:
        return f"'{self.format}', shape={self.shape}"


class ActivationQuantizer(nn.Module):
    """An input or output through its format, with the features in the last dimension.

    Its scale is chosen from each tensor (dynamic), or it is static: what an observer says, or
    learned. `stored` is the quantizer that the quantized layer gets.

    where: whose input or output it is, as a warning names it
    """

    def __init__(self, fmt: Format, features: int, observer: Observer | None, learn: str | None):
        super().__init__()
        self.format, self.where, self._has_warned = fmt, "an input or output", False
        self.stored = QInput(fmt)
        self.observer = observer
        shape = fmt.block.scale_shape((1, features)) if observer or learn else ()
        self.learned = LearnedScale(fmt, shape, learn) if learn else None
        self.ready = observer is None and learn is None  # whether the static scale has a value
        if observer is not None:  # so that a state that has one can be loaded
            self._store(_of_nothing(fmt, shape))

    @property
    def static(self) -> bool:
        """Whether every tensor gets the same scale."""
        return self.observer is not None or self.learned is not None

    def observe(self, x: Tensor) -> None:
        """Observe x [..., features]; not again when activation checkpointing recomputes it."""
        if self.observer is None or in_backward():
            return
        self.observer.observe(x.detach())
        self.refresh()

    def refresh(self) -> None:
        """Take the scale that the observer chooses now, if it has seen anything."""
        if self.observer is not None and self.observer.finite:
            self._store(self.observer.qparams())
            self.ready = True

    def synchronize(self, group: Any = None) -> None:
        """Let the scales of all processes agree on what each has seen."""
        if self.observer is not None:
            self.observer.all_reduce_(group)
            self.refresh()
        if self.learned is not None:
            self.learned.agree_(group)
            self.ready = self.ready or not bool(self.learned.waiting.all())

    def forward(self, x: Tensor) -> Tensor:
        """x [..., features] -> what the format leaves of it, in x's dtype; x without rows stays."""
        if not self.ready and x.numel() == 0:
            return x
        if self.learned is None:
            self.check()
            quantized: Tensor = self.stored(x)
            return quantized
        wide = x.to(torch.float32)
        self._see(wide.detach())
        qparams = self._holding(self.learned.qparams()).for_rank(x.ndim)
        assert qparams is not None
        # N is a sample's number of features (LSQ)
        shared = prod(x.shape[1:] if x.ndim > 1 else x.shape) / max(qparams.scale.numel(), 1)
        seed = seed_tensor(None, x.device) if self.format.rounding == "stochastic" else None
        values: Tensor = self.learned(wide, qparams, shared, seed)
        return values.to(x.dtype)

    def _see(self, x: Tensor) -> None:
        """Let a learned scale begin with x, the first that has a range, or grow."""
        assert self.learned is not None
        rows = x.reshape(-1, x.shape[-1])
        if self.ready:
            if self.training and not in_backward():
                self.learned.grow(rows)
            return
        if not self.training:
            self.check()
        self.learned.start(rows, beside=True)
        # a program has no branches: there the scale grows where the first batch had no range
        self.ready = torch.compiler.is_compiling() or not bool(self.learned.waiting.all())
        if not self.ready and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"blockscale: {self.where}: a batch of only zeros, NaN or infinities cannot "
                f"set the scale ({self.format}); the first batch with other values will",
                stacklevel=2,
            )

    def check(self) -> None:
        """Raise ValueError if the scale is static and nothing has been seen to choose it from."""
        if not self.ready:
            raise ValueError(
                f"{self.format}: this scale is static and has seen no data yet: run batches "
                "in training mode with observers on, or prepare with observer=None (dynamic "
                "scales)"
            )

    def for_inference(self) -> QInput:
        """The quantizer that a quantized layer gets now. Raises as `check`."""
        self.check()
        return self.stored if self.learned is None else self._holding(self.learned.qparams())

    def _holding(self, qparams: QParams) -> QInput:
        quantizer = QInput(self.format)
        quantizer.set_parts(qparams)
        return quantizer

    def _store(self, qparams: QParams) -> None:
        # new tensors, not copies into the old ones: those are saved for backward passes
        self.stored.set_parts(qparams)

    def extra_repr(self) -> str:
        return f"'{self.format}', {'static' if self.static else 'dynamic'}"


class Quantizers(NamedTuple):
    """Those of one layer: None where its input or output stays float."""

    weight: WeightQuantizer
    input: ActivationQuantizer | None
    output: ActivationQuantizer | None


def _of_nothing(fmt: Format, shape: tuple[int, ...]) -> QParams:
    zeros = torch.zeros(shape)
    return qparams_from_range(zeros, zeros, torch.zeros(shape, dtype=torch.bool), fmt)


def in_backward() -> bool:
    """Whether a backward pass is running: activation checkpointing computes a forward again."""
    return not torch.compiler.is_compiling() and graph_task() != -1
