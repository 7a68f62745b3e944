# SPDX-License-Identifier: BSD-3-Clause
"""Formats as the `dtype` of torch.ao's observers: what stands in their place then.

torch.ao's flows insert observers by their dtype: `quint8` for activations, `qint8` for weights,
which these say they are, whatever their format is. Its converters know one scale for a tensor or a
channel: where a format is one of theirs, `calculate_qparams` gives it; else it is an error that
says what converts. `bs.graph.from_quantize_fx` and `convert` here ask for `values` in any case.
"""

import inspect
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.ao import quantization as ao

from blockscale.calibration import observers
from blockscale.compat.torch_ao.recipe import to_format
from blockscale.core.elements.integer import Integer
from blockscale.core.format import Format
from blockscale.core.integer_scales import with_power_of_2_scale
from blockscale.core.pack import from_stored, of_convolution, to_stored
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.core.scale import PowerOfTwo
from blockscale.layers.store import QInput
from blockscale.ops.quantize import choose_qparams

PARTS = ("input", "weight")
_NAMES: dict[Any, str] = {  # the first that fits: moving averages are kinds of MinMaxObserver
    ao.MovingAverageMinMaxObserver: "moving_average",
    ao.MovingAveragePerChannelMinMaxObserver: "moving_average",
    ao.HistogramObserver: "mse",
    ao.MinMaxObserver: "min_max",
    ao.PerChannelMinMaxObserver: "min_max",
    ao.PlaceholderObserver: "",
}


def spec_of(kind: Any, arguments: dict[str, Any], *, users: bool = False) -> str:
    """The observer of blockscale that stands for one of torch.ao's classes; "" for one that sees
    nothing.

    Minima and maxima and their moving averages are the same ones. A HistogramObserver becomes
    "mse", which also minimizes the squared error, but for the format at hand.

    users: also of a user's subclasses, whose own rules for scales are left out then
    Raises TypeError for other classes.
    """
    is_known = isinstance(kind, type) and kind.__module__.startswith(("torch.ao.", "blockscale."))
    for theirs, name in _NAMES.items():
        if (is_known or users) and issubclass(kind, theirs):
            constant = arguments.get("averaging_constant")
            return name if constant is None else f"{name}:{constant}"
    names = ", ".join(each.__name__ for each in _NAMES)
    raise TypeError(
        f"{getattr(kind, '__name__', kind)} chooses one scale for integers of torch's dtypes, "
        f"and cannot choose the scales of a format: use one of {names} as the observer of a "
        "format; for torchao's prepare_pt2e use bs.graph.pt2e_quantizer(recipe)"
    )


def format_as_dtype(arguments: dict[str, Any]) -> Format | None:
    """The format that is given as `dtype`; None for a dtype of torch, or nothing.

    Raises ValueError for a spelling that does not parse.
    """
    dtype = arguments.get("dtype")
    return parse(dtype) if isinstance(dtype, str | Format) else None


def observer_arguments(kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an observer's class by their names, where the format may be the first."""
    if not args:
        return kwargs
    theirs = next((c for c in kind.__mro__ if c.__module__.startswith("torch.ao.")), kind)
    parameters = inspect.signature(theirs).parameters
    return {**dict(zip(parameters, args, strict=False)), **kwargs}


class FormatObserver(ao.ObserverBase):
    """What an observer of torch.ao's kind becomes with a format as its `dtype`.

    It lets tensors pass, and sees them where the format's scale is static (one for a tensor, one
    for a channel counted from the end). Scales of blocks are chosen from each tensor.

    format: what tensors are to be quantized in; spec: how static ranges are chosen (bs.observers)
    part: "input" for activations, along `ch_axis`, the dimension that blocks lie along; "weight"
        for weights, which are quantized as their layer stores them: those of convolutions with
        their input channels last (blockscale.core.pack)
    dtype, qscheme, quant_min, quant_max: what torch.ao's flows read
    power_of_2_scale: the format with the nearest power of two for a scale

    Raises ValueError for formats whose scale cannot be chosen so, TypeError for arguments that a
    format leaves nothing to say of (`qscheme`, `quant_min`, …).
    """

    def __init__(
        self,
        dtype: str | Format,
        *,
        spec: str = "moving_average",
        part: str = "input",
        ch_axis: int = -1,
        power_of_2_scale: bool = False,
        factory_kwargs: dict[str, Any] | None = None,
        **other: Any,
    ):
        fmt = parse(dtype)
        _check(fmt, part, other)
        fmt = with_power_of_2_scale(fmt) if power_of_2_scale else fmt
        super().__init__(dtype=torch.qint8 if part == "weight" else torch.quint8)
        self.format, self.part, self.spec, self.ch_axis = fmt, part, spec, ch_axis
        self.power_of_2_scale = power_of_2_scale
        self.is_dynamic = False
        static = part == "input" and fmt.block.static
        if static and not spec:
            raise ValueError(
                f"PlaceholderObserver records nothing, and {fmt} needs a scale from what an "
                "observer saw: use MinMaxObserver, or a format whose scales come from each "
                "input (int8_token, mxfp8)"
            )
        self.statistics = observers.make(spec, fmt) if static else None
        self.weight_qparams: QParams | None = None
        for name, value in _of_torch(fmt, part).items():
            setattr(self, name, value)
        self.to(**{k: v for k, v in (factory_kwargs or {}).items() if k == "device"})

    def forward(self, x: Tensor) -> Tensor:
        """x [...] -> x, which it has observed."""
        plain = x.detach()
        if self.statistics is not None:
            self.statistics.to(x.device).observe(plain.movedim(self.ch_axis, -1))
        elif self.part == "weight" and self.qscheme is not None:  # as torch.ao may ask for them
            value: Any = choose_qparams(to_stored(plain, _layout(plain)), self.format)
            self.weight_qparams = QParams(value[0], None, value[1])
        return x

    @property
    def missing(self) -> bool:
        """Whether a static scale has seen no data."""
        return self.statistics is not None and not self.statistics.finite

    def qparams(self) -> QParams:
        """The parts of a static scale, as bs.choose_qparams gives them. Raises ValueError without
        data, and for scales that are chosen from each tensor."""
        if self.statistics is not None:
            return self.statistics.qparams()
        if self.weight_qparams is not None:
            return self.weight_qparams
        raise ValueError(
            f"the scales of {self.format} are chosen from each tensor: "
            f"bs.choose_qparams(x, {str(self.format)!r}) gives those of x"
        )

    @torch.jit.unused
    def calculate_qparams(self, **_: Any) -> tuple[Tensor, Tensor]:
        """Scale and zero point [1] or [channels], for formats that torch.ao has, too.

        Raises ValueError for others, which torch.ao's converters would quantize otherwise, and
        without data.
        """
        if self.qscheme is None:
            raise ValueError(
                f"torch.ao has no qscheme for {self.format} ({self.part}), so its own "
                "converters would quantize to other values: convert with "
                "bs.graph.from_quantize_fx(prepared, example) after prepare_fx or "
                "prepare_qat_fx, with convert of blockscale.compat.torch_ao after prepare or "
                "prepare_qat; qparams() gives the parts of a static scale"
            )
        parts = self.qparams()
        scale = parts.scale.flatten()
        if parts.zero_point is None:
            return scale, torch.zeros_like(scale, dtype=torch.int32)
        return scale, parts.zero_point.flatten().to(torch.int32)

    def values(self, layout: str | None = None) -> "FormatValues":
        """A module that gives what the format leaves of a tensor, as it is chosen now.

        layout: of a weight, which it then is, where its layer says; else what its rank says. Raises
        ValueError for a static scale that has seen no data.
        """
        by = QInput(self.format)
        if self.statistics is not None:
            parts = self.statistics.qparams()._asdict()
            by.restore({name: part for name, part in parts.items() if part is not None})
        return FormatValues(by, "weight" if layout else self.part, self.ch_axis, layout)

    def convert(self, model: fx.GraphModule, node: fx.Node) -> None:
        """Write `values` in the place of the node that observed: torch.ao's decomposed converter
        calls this. Raises ValueError as `values`, with the node's name."""
        try:
            result = self.values()
        except ValueError as error:
            raise ValueError(f"{node.args[0]}: {error}") from None
        name = f"{node.target}_values".replace(".", "_")
        model.add_submodule(name, result)
        with model.graph.inserting_before(node):
            y = model.graph.call_module(name, (node.args[0],))
        node.replace_all_uses_with(y)
        model.graph.erase_node(node)

    def extra_repr(self) -> str:
        along = "" if self.part == "weight" else f", ch_axis={self.ch_axis}"
        spec = f", observer='{self.spec}'" if self.statistics is not None else ""
        return f"'{self.format}', part='{self.part}'{along}{spec}"


class FormatValues(nn.Module):
    """x [...] -> what a format leaves of it, with a straight-through gradient (bs.fake_quantize).

    by: the format, with its scale if it is static; part, ch_axis: as FormatObserver's
    layout: of a weight; None: of its rank
    """

    def __init__(self, by: QInput, part: str, ch_axis: int, layout: str | None = None):
        super().__init__()
        self.by, self.part, self.ch_axis, self.layout = by, part, ch_axis, layout

    def forward(self, x: Tensor) -> Tensor:
        """x [...] -> its values, in x's dtype."""
        if self.part != "weight":
            last = self.ch_axis in (-1, x.ndim - 1)
            y: Tensor = self.by(x if last else x.movedim(self.ch_axis, -1))
            return y if last else y.movedim(-1, self.ch_axis)
        layout = self.layout or _layout(x)
        if not of_convolution(layout):
            return self.by(x)
        return from_stored(self.by(to_stored(x, layout).contiguous()), layout, x.shape)

    def extra_repr(self) -> str:
        return f"part='{self.part}', ch_axis={self.ch_axis}"


def _layout(weight: Tensor) -> str:
    """How a weight of this rank is stored, unless its layer says otherwise."""
    return "channels_last" if weight.ndim > 2 else "plain"


def _check(fmt: Format, part: str, other: dict[str, Any]) -> None:
    if part not in PARTS:
        raise ValueError(f"unknown part {part!r}; choose from {', '.join(PARTS)}")
    results = [name for name, value in other.items() if value not in (None, False)]
    if results:
        raise TypeError(
            f"{', '.join(results)}: a format ({fmt}) already states its range, scheme and "
            f"blocks: leave {'it' if len(results) == 1 else 'them'} out, or pass a torch.dtype"
        )
    if fmt.unchosen:
        raise ValueError(f"{fmt}: {fmt.unchosen}: no observer can choose it")


def _of_torch(fmt: Format, part: str) -> dict[str, Any]:
    """What torch.ao's flows read of an observer: its own terms, where it has the format."""
    weight, bits = part == "weight", fmt.bits
    names = ("qscheme", "quant_min", "quant_max")
    if not isinstance(fmt.element, Integer) or bits > 8:
        return dict.fromkeys(names)
    channels = fmt.block.name == "channel0"
    scheme = torch.per_channel_symmetric if channels else torch.per_tensor_symmetric
    high = 2 ** (bits - weight) - 1
    low = -high - (fmt.span == "half") if weight else 0
    if not weight:
        scheme = torch.per_tensor_affine
    by_name = dict(zip(names, (scheme, low, high), strict=True))
    theirs: Any = SimpleNamespace(
        **by_name,
        dtype=torch.qint8 if weight else torch.quint8,
        power_of_2_scale=isinstance(fmt.scale, PowerOfTwo),
    )
    try:
        same = to_format(theirs) == fmt
    except ValueError:
        same = False
    return by_name | {"ch_axis": 0 if weight else -1} if same else dict.fromkeys(names)
