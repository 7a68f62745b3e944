# SPDX-License-Identifier: BSD-3-Clause
"""What quantized layers are made of: the codes of a weight and a bias, and the quantizers of an
input and an output."""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.core.arithmetic.sums import live_steps
from blockscale.core.format import Format
from blockscale.core.operand import Operand, Quantizer, quantizer
from blockscale.core.pack import from_stored, of_joined_stack, stack_layout, to_stored
from blockscale.core.reference import QParams, step_of
from blockscale.core.scales import TwoLevel
from blockscale.layers.before import Before
from blockscale.layers.buffers import Scaled
from blockscale.layers.weight_source import RowFormat, Source, traced
from blockscale.layers.weight_tensor import WeightTensor, one_read
from blockscale.ops import primitives
from blockscale.ops.caller_parts import checked_parts
from blockscale.ops.quantize import quantize
from blockscale.ops.seed import seed_tensor
from blockscale.ops.tensor import QTensor, describe, dtype_name


class QWeight(Scaled):
    """A quantized weight: buffers `codes` (packed), `scale`, `zero_point`, `outer`, further parts.
    Or a bias whose format has a scale of its own.

    format, shape, dtype: what it is in, and of the float weight; layout: blockscale.core.pack.
    """

    codes: Tensor
    dtype: torch.dtype
    offloads = True
    part = ""  # of a larger weight, whose other parts other processes have: which one it is

    def __init__(self, q: QTensor, shape: tuple[int, ...], dtype: torch.dtype, layout: str):
        super().__init__()
        self.format, self.layout = q.format, layout
        self.shape, self.dtype = torch.Size(shape), dtype
        self.fmt = str(q.format)
        self.size = q.size
        self.name = ""  # of the parameter in its model, which errors tell
        self.register_buffer("codes", q.packed)
        self.set_parts(q.qparams)

    @classmethod
    def quantize(
        cls, weight: Tensor, fmt: Format, layout: str = "plain", seed: int | Tensor | None = None
    ) -> "QWeight":
        """A float weight as its layer has it -> its quantized form. Raises as `bs.quantize`."""
        q = quantize(to_stored(weight.detach(), layout), fmt, seed=seed)
        return cls(q, tuple(weight.shape), weight.dtype, layout)

    def become_part(self, q: QTensor, told: str) -> None:
        """Hold a part of the codes from now on, in the format that it has; told: which one."""
        shape = list(q.shape)
        if self.layout == "transposed":
            shape[-1], shape[-2] = shape[-2], shape[-1]
        elif of_joined_stack(self.layout):
            self.layout, shape = stack_layout(shape[0]), [shape[0] * shape[2], shape[1]]
        self.format, self.fmt, self.size = q.format, str(q.format), q.size
        self.shape, self.part = torch.Size(shape), told
        self.register_buffer("codes", q.packed)
        self.set_parts(q.qparams)

    @property
    def input(self) -> "StackInput | None":
        """How rows are quantized that meet a stack of experts; None where they stay in float."""
        return self._modules.get("input")  # type: ignore[return-value]

    @property
    def rows(self) -> RowFormat | None:
        """The same, as products with what was read take it."""
        return None if self.input is None else RowFormat(self.input, self.name)

    def set_input(self, by: "StackInput") -> None:
        """Quantize the rows that meet this stack, from now on."""
        self._modules["input"] = by

    def _apply(self, fn: Any, recurse: bool = True) -> "QWeight":
        super()._apply(fn, recurse)
        if self.input is not None:
            self.input._apply(fn)
        return self

    @property
    def operand(self) -> Operand:
        """The weight as ops take it, in its stored layout."""
        plain = self._keeper is None and not self.frozen
        part: dict[str, Any] = self._buffers if plain else self.present()
        more = [part[name] for name in self._further] if self._further else None
        return Operand(
            part["codes"], part["scale"], part["zero_point"], part["outer"], self.fmt, self.size,
            more,
        )  # fmt: skip

    @property
    def tensor(self) -> QTensor:
        """The weight as a QTensor, in its stored layout."""
        part = self.present()
        qparams = self._qparams_of(part)
        assert qparams is not None
        return QTensor(part["codes"], qparams, self.format, self.size)

    @property
    def device(self) -> torch.device:
        """Where the codes are, or are used, if they are kept elsewhere."""
        if self._keeper is not None:
            return torch.device(self._keeper.execution_device)
        device: torch.device = self.own["codes"].device
        return device

    @property
    def sharded(self) -> bool:
        """Whether FSDP2 has this process keep a part of the codes, and none of them is in use."""
        return self.frozen and hasattr(self._parameters["codes"], "full_tensor")

    @property
    def _is_fsdp_managed_module(self) -> bool:
        """What FSDP sets on each module below the one that it was given."""
        if "_is_fsdp_managed_module" not in self.__dict__:
            raise AttributeError(f"no FSDP manages this {type(self).__name__}")
        is_managed: bool = self.__dict__["_is_fsdp_managed_module"]
        return is_managed

    @_is_fsdp_managed_module.setter
    def _is_fsdp_managed_module(self, is_managed: bool) -> None:
        self.__dict__["_is_fsdp_managed_module"] = is_managed
        if is_managed and not self.frozen:
            warnings.warn(
                "blockscale: FSDP shards parameters, and the codes of this model's quantized "
                "layers are buffers: every process keeps all of them. Call "
                "bs.parallel.as_parameters_(model) before fully_shard, with torch 2.13 or later; "
                "FullyShardedDataParallel (FSDP1) cannot shard codes",
                stacklevel=5,  # nn.Module.__setattr__, fully_shard, its decorator, who called
            )

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales that are held here."""
        own = (part for part in self.own.values() if part is not None)
        return sum((p.to_local() if hasattr(p, "to_local") else p).nbytes for p in own)

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The float weight as its layer had it, by default in the dtype it had."""
        values = self.tensor.dequantize(dtype or self.dtype)
        return from_stored(values, self.layout, self.shape)

    def read(self, before: Before | None = None) -> Tensor:
        """What code gets that computes with it by itself: a WeightTensor, or floats when traced."""
        if traced():
            if self.input is not None:
                raise _traced(self.name, self.input.fmt)
            return self.undone(before).contiguous()  # as the parameter was
        source = self.source(before)
        return WeightTensor(source) if before is not None else one_read(self, source)

    def source(self, before: Before | None = None) -> Source:
        """Where a tensor that was read has its numbers."""
        return Source(
            self.shape, self.dtype, self.device, self.name,
            None if before is not None or self.sharded else self.operand,
            self.layout, self.layout == "transposed", lambda: self.undone(before), self,
            rows=self.rows,
        )  # fmt: skip

    def undone(self, before: Before | None, dtype: torch.dtype | None = None) -> Tensor:
        """The float weight for its layer's own input, not for what `before` gives."""
        if before is None:
            return self.dequantize(dtype)
        stored = before.from_weight(self.tensor.dequantize())
        return from_stored(stored, self.layout, self.shape).to(dtype or self.dtype)

    def extra_repr(self) -> str:
        part = f", {self.part}" if self.part else ""
        return f"'{self.fmt}', shape={tuple(self.shape)}{part}"


def _traced(name: str, fmt: str) -> RuntimeError:
    """What is raised where a program would have a stack's floats, and so its rows unquantized."""
    owner = name.rpartition(".")[0]
    return RuntimeError(
        f"{name}: torch.compile and torch.export read a stack of experts as floats, which would "
        f"leave its input, in {fmt}, unquantized: leave the experts out of the program (m = "
        f"model.get_submodule({owner!r}); m.forward = torch.compiler.disable(m.forward)), or "
        "quantize them without an input format"
    )


class QInput(Scaled):
    """How a layer's input or output is quantized when it runs: by a scale chosen from each tensor
    (dynamic), or a given one (static). In formats of two levels whose outer scale is given
    (`/given`) the buffer `outer` alone is static, and the scales of blocks are chosen beside it."""

    def __init__(self, fmt: Format):
        super().__init__()
        self.format = fmt
        self.fmt = str(fmt)
        self._text = str(fmt.choosing)  # for ops, to which a scale is a scale
        self._dynamic = Quantizer(None, None, None, self._text)  # made once: it holds no tensor
        self.set_parts(None)

    @property
    def static(self) -> bool:
        """Whether a scale was given, or the outer one of a format whose outer scale is given."""
        return self._buffers["scale"] is not None or self._buffers["outer"] is not None

    def set_outer(self, outer: Tensor) -> None:
        """Give the outer scale, one number. Raises ValueError for anything else, and for formats
        that choose it or share it out otherwise."""
        scale = self.format.scale
        if not isinstance(scale, TwoLevel) or not scale.given or str(scale.inner.block) != "tensor":
            raise ValueError(
                f"{self.fmt}: an outer scale can be passed only for a two-level format with a "
                "static one for the whole tensor, such as e2m1:group16:e4m3/given"
            )
        dtype = scale.outer_type.dtype
        if not isinstance(outer, Tensor) or outer.numel() != 1 or outer.dtype != dtype:
            raise ValueError(
                f"{self.fmt}: its outer scale must be one number, {dtype_name(dtype)}, found "
                f"{describe(outer)}"
            )
        self.set_parts(QParams(None, outer.detach().reshape(1, 1)))  # type: ignore[arg-type]

    def set_scale(
        self,
        scale: "Tensor | QTensor",
        zero_point: Tensor | None = None,
        features: int | None = None,
        offset: "Tensor | QTensor | None" = None,
    ) -> None:
        """Make it static, with a stored scale as `bs.choose_qparams` gives for one input.

        features: the size of the inputs' last dimension, to check the scale with.

        Raises ValueError unless the format's block is the whole tensor or a channel counted from
        the end (`channel-1`): scales of other blocks depend on how many rows an input has.
        """
        if self.format.gives_outer:
            self.set_outer(scale)  # type: ignore[arg-type]
            return
        block = self.format.block.name
        if block != "tensor" and not block.startswith("channel-"):
            raise ValueError(
                f"{self.fmt}: a static scale needs the block 'tensor' or 'channel-1'; with "
                f"{block!r} scales are dynamic"
            )
        rank = len(getattr(scale, "shape", ())) or 1
        shape = getattr(scale, "shape", None) or (1,)
        dims = [1] * (rank - 1) + [1 if block == "tensor" else features or shape[-1]]
        self.set_parts(checked_parts(self.format, tuple(dims), scale, zero_point, offset))

    def restore(self, parts: dict[str, Tensor]) -> None:
        """Make it static with parts that were saved."""
        names = ("outer",) if self.format.gives_outer else self.format.parts
        self.set_parts(QParams(**{"scale": None} | {name: parts[name] for name in names}))  # type: ignore[arg-type]

    def of(self, x: Tensor) -> Quantizer:
        """How x [...] is quantized now, as ops take it; draws a seed where that is needed."""
        if self.format.rounding == "stochastic":
            return quantizer(self.parts_for(x), self._text, seed_tensor(None, x.device))
        if not self.static:
            return self._dynamic
        return quantizer(self.parts_for(x), self._text)

    def parts_for(self, x: Tensor) -> QParams | None:
        """All parts for x [...]: given ones, or those that x chooses beside a given outer scale;
        None where x chooses all of them."""
        outer = self._buffers["outer"]
        if self._buffers["scale"] is not None or outer is None:
            return self.for_rank(x.ndim)
        outer = _of_rank(outer, x.ndim)
        tensors = primitives.choose_beside(x.detach(), outer, self._text)
        names = [name for name in self.format.parts if name != "outer"]
        return QParams(outer=outer, **dict(zip(names, tensors, strict=True)))

    def for_rank(self, rank: int) -> QParams | None:
        """All parts that are given, shaped for a tensor of `rank`; None without a given scale."""
        part = self.present()
        scale, zero = part["scale"], part["zero_point"]
        if scale is not None and part["outer"] is None and not self._further:  # nearly always
            zero = None if zero is None else _of_rank(zero, rank)
            return QParams(_of_rank(scale, rank), None, zero)
        parts = self.qparams
        if parts is None:
            return None
        return QParams(*(None if each is None else _of_rank(each, rank) for each in parts))  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """x [...] -> what the format leaves of it, in x's dtype."""
        values: Tensor = primitives.fake_quantize(x, self.of(x))
        return values

    def extra_repr(self) -> str:
        return f"'{self.fmt}', {'static' if self.static else 'dynamic'}"


class StackInput(QInput):
    """How rows are quantized that meet the matrices of a stack: by scales that are chosen from the
    rows of each matrix (dynamic), or by given ones, whose first dimension says of which matrix."""

    def set_each(self, each: Sequence[QInput]) -> None:
        """Make it static with what is given for each matrix."""
        names = ("outer",) if self.format.gives_outer else self.format.parts
        parts = {name: [one.present()[name] for one in each] for name in names}
        self.restore({
            name: torch.stack([part.reshape(1, part.shape[-1]) for part in some])
            for name, some in parts.items()
        })  # fmt: skip

    def of_matrix(self, number: int) -> QInput:
        """Of one matrix alone."""
        one = QInput(self.format)
        one.set_parts(self._some(number))
        return one

    def of_sorted(self, x: Tensor, numbers: range | None) -> Quantizer | None:
        """How rows x [rows, k], sorted by matrix, are quantized, as ops.grouped_linear takes it.

        None where scales are chosen beside a given one, so that each matrix has to be asked for.
        numbers: which of the matrices; None for all
        """
        if not self.static:
            return self.of(x)
        if self.format.gives_outer:
            return None
        parts = self._some(slice(None) if numbers is None else slice(numbers.start, numbers.stop))
        seed = seed_tensor(None, x.device) if self.format.rounding == "stochastic" else None
        return quantizer(parts, self._text, seed)

    def _some(self, which: int | slice) -> QParams | None:
        """The given parts of some of the matrices."""
        parts = {name: part for name, part in self.present().items() if part is not None}
        some = {name: part[which] for name, part in parts.items()}
        return QParams(**{"scale": None} | some) if some else None


def _of_rank(part: Tensor, rank: int) -> Tensor:
    """A scale whose leading sizes are 1, with as many of them as a tensor of `rank` needs."""
    more = rank - part.ndim
    if more == 0:
        return part
    return part.reshape((1,) * more + tuple(part.shape[max(-more, 0) :]))


# Quantized parameters that a module holds by their names (layers.held_parameters).


class Holder:
    """A module with quantized parameters; `held_names` are their names."""

    held_names: tuple[str, ...] = ()
    float_class: type[nn.Module]


def weights_of(module: nn.Module) -> dict[str, QWeight]:
    """{name: quantized parameter} of a module itself, not of those in it."""
    names = module.held_names if isinstance(module, Holder) else ()
    return {name: module._modules[name] for name in names}  # type: ignore[misc]


def all_held(model: nn.Module) -> Iterator[tuple[str, QWeight]]:
    """(dotted name, quantized parameter) of all modules of a model, every name of each."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, weight in weights_of(module).items():
            yield (f"{prefix}.{name}" if prefix else name), weight


# The step of each of a layer's sums, as its weight and its input decide it.


def steps_of_outputs(values: Tensor, qparams: QParams, fmt: Format) -> Tensor:
    """A weight's values [n, k], and the stored scale that they have -> the step of each output [n]:
    the scale's, or the part of it in which its powers of two are counted (Element.grain).

    Outputs whose weights are all 0 have the step of others (core.arithmetic.sums.live_steps).
    """
    part = 2.0 ** -(fmt.element.grain or 0)
    steps = (step_of(qparams, fmt) * part).reshape(-1).expand(values.shape[0])
    return live_steps(steps, (values == 0).all(1))


def step_of_input(quantizer: QInput) -> Tensor:
    """The step of a static input of one scale, float32 []."""
    scale, zero_point, outer = quantizer.parts
    assert scale is not None
    return step_of(QParams(scale, outer, zero_point), quantizer.format).reshape(())
