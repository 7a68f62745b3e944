# SPDX-License-Identifier: BSD-3-Clause
"""Scales that training learns: LSQ's step sizes and TQT's thresholds, one per block of any format.

The scale that is used is always the stored one, what the format makes of the parameter, so that
training and the quantized model multiply by the same numbers.

LSQ: Esser et al., "Learned step size quantization", ICLR 2020 (arXiv 1902.08153).
TQT: Jain et al., "Trained quantization thresholds", MLSys 2020 (arXiv 1903.08066).
"""

from collections.abc import Mapping
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from blockscale.calibration.observer import is_mean
from blockscale.core import reference
from blockscale.core.arithmetic.precision import FLT_MAX, FLT_MIN, exponent, pow2
from blockscale.core.block import Blocks
from blockscale.core.format import Format
from blockscale.core.operand import Quantizer
from blockscale.core.reference import QParams
from blockscale.ops import primitives

DOMAINS = ("steps", "thresholds")
LEARNING = ("weight", "input", "output")  # parts whose scales can be learned
Learn = str | Mapping[str, str | None] | None
Learning = Mapping[str, str | None]  # {"weight", "input", "output": what is learned of its scale}
PARTS = tuple(2.0 ** (-j / 8) for j in range(17))  # of the range: 1 to 1/4
NOTHING = -torch.inf  # the origin of a block that has not begun
LOST = 4.0  # a mean magnitude above so many times what the scale reaches: it says nothing of x

PROFILED = "profiles are not supported in training: use a plain format"


def read_learning(learn: Learn) -> Learning:
    """`learn` of `prepare_qat` -> what is learned of each part. Raises ValueError for others."""
    parts = dict.fromkeys(LEARNING, learn) if isinstance(learn, str | None) else dict(learn)
    if unknown := [p for p in parts if p not in LEARNING]:
        raise ValueError(f"learn: unknown part {unknown[0]!r}; choose from {', '.join(LEARNING)}")
    for what in parts.values():
        if what is not None and what not in DOMAINS:
            raise ValueError(f"learn must be None or one of {', '.join(DOMAINS)}, got {what!r}")
    return dict.fromkeys(LEARNING) | parts


class LearnedScale(nn.Module):
    """One parameter per block [scale's shape]: LSQ's step, or the log2 of TQT's threshold.

    steps: the step size s; its gradient is multiplied by 1 / sqrt(N * Q), where N is how many
        elements share it and Q the element's largest value (LSQ, sections 2.1 and 2.2).
    thresholds: log2 of the largest value t that the format should reach; the format's own rule says
        what its scale makes of t. Under `floor` the step is the paper's 2^(ceil(log2 t) - bits + 1)
        (TQT, section 3.2), but for t a power of two, where it is twice that and reaches t.

    What counts is the parameter plus `origin`, a buffer. A block begins with the first values that
    have a range: a tensor of zeros, of NaN or without rows has none, and a threshold of nothing
    would stay there, as its gradient is in proportion to it. Until then its origin is -inf, and its
    scale the smallest. What begins in a forward pass begins in `origin`: there FSDP has only a
    copy of the parameter, and DDP keeps buffers the same in all processes, but not parameters.
    """

    origin: Tensor
    grew: Tensor  # how often blocks that had begun began anew, since this was made

    def __init__(self, fmt: Format, shape: tuple[int, ...], domain: str):
        super().__init__()
        self.format, self.domain = fmt, domain
        self.name = "step" if domain == "steps" else "log2_threshold"
        self.register_parameter(self.name, nn.Parameter(torch.zeros(shape)))
        self.register_buffer("origin", torch.full(shape, NOTHING))
        self.register_buffer("grew", torch.zeros((), dtype=torch.int64), persistent=False)

    @property
    def parameter(self) -> nn.Parameter:
        """What is learned."""
        return self.get_parameter(self.name)

    @property
    def waiting(self) -> Tensor:
        """Whether each block [scale's shape] has not begun."""
        return self.origin == NOTHING

    @torch.no_grad()
    def start(self, x: Tensor, *, beside: bool = False) -> None:
        """Let blocks that wait begin with the scales that quantize x [...] with the least squared
        error, where x has a range.

        Candidates: parts of the range that the format itself would choose, and LSQ's beginning,
        step = 2 mean|x| / sqrt(Q) (section 2.1), which is too coarse for many bits.

        beside: in `origin`, beside the parameter
        """
        x, fmt, levels = reference.widen(x), self.format.deterministic, self.format.levels.value
        low, high, _ = reference.ranges(x, fmt)
        whole = reference.numerator(low, high, fmt)
        best, least = whole, torch.full_like(whole, torch.inf)
        mean = Blocks(x, fmt.block).mean_magnitude() * (2 * levels**0.5)
        for a in (*(whole * part for part in PARTS), mean):
            error = (reference.fake_quantize(x, self._stored(a), fmt) - x).square()
            loss = Blocks(error, fmt.block).mean_magnitude()
            best, least = torch.where(loss < least, a, best), torch.minimum(loss, least)
        shape = self.parameter.shape
        begins, start = (whole > 0).reshape(shape) & self.waiting, self._of(best).reshape(shape)
        if not beside:
            self.parameter.copy_(torch.where(begins, start, self.parameter))
        start = start - self.parameter if beside else torch.zeros_like(start)
        self.origin.copy_(torch.where(begins, start, self.origin))

    def restart(self) -> None:
        """Wait in every block."""
        self.origin.fill_(NOTHING)

    @torch.no_grad()
    def growth(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [...] float32 -> the origin that fits it, and which blocks that had begun begin anew;
        both of the scale's shape.

        A block whose mean magnitude is more than `LOST` times the largest value that its scale
        reaches gets from x next to no gradient: it is as if it had not begun. Where x has a range,
        such blocks begin with it. A scale that is frozen can only begin.
        """
        fmt, shape = self.format, self.origin.shape
        low, high, mean = (each.reshape(shape) for each in Blocks(x, fmt.block).extent())
        whole = mean if is_mean(fmt) else reference.numerator(low, high, fmt)
        reach = self._reach(self.origin)
        far = mean > LOST * reach
        begins = far & (whole > reach)
        restarts = begins & ~self.waiting & self.parameter.requires_grad
        origin = self._of(whole) - self.parameter
        return torch.where(restarts | (begins & self.waiting), origin, self.origin), restarts

    @torch.no_grad()
    def grow(self, x: Tensor) -> None:
        """Let blocks begin with x [...] float32 that have not begun, or reach far too little."""
        self.keep(*self.growth(x))

    @torch.no_grad()
    def keep(self, origin: Tensor, restarts: Tensor) -> None:
        """Take the origin of `growth`, and count whether a block began anew."""
        self.origin.copy_(origin)
        self.grew += restarts.any()

    def _of(self, a: Tensor) -> Tensor:
        """The numerator of each block -> the parameter that means it."""
        a = a.clamp(FLT_MIN, FLT_MAX)
        return a / self.format.levels.value if self.domain == "steps" else _log2(a)

    def _stored(self, a: Tensor) -> QParams:
        """The numerator of each block -> its stored scale (docs/numerics.md, section 3)."""
        low = -a if self.format.element.signed else torch.zeros_like(a)
        clean = torch.zeros_like(a, dtype=torch.bool)
        return reference.qparams_from_range(low, a, clean, self.format)

    @torch.no_grad()
    def qparams(self, origin: Tensor | None = None) -> QParams:
        """The stored scale, and its outer scale, that the parameter stands for now.

        origin: in place of its own
        """
        return self._stored(self._reach(self.origin if origin is None else origin))

    def _reach(self, origin: Tensor) -> Tensor:
        """The largest value that the scale of each block [scale's shape] represents."""
        value = self.parameter.to(torch.float32) + origin
        if self.domain == "steps":
            a = value.clamp(min=0.0) * self.format.levels.value
        else:  # the power from bits, so that a whole number gives exactly that power of two
            whole = value.floor().clamp(-126, 127)
            a = pow2(whole.to(torch.int32)) * torch.exp2((value - whole).clamp(0, 1))
        return a.clamp(max=FLT_MAX)

    def agree_(self, group: Any = None) -> None:
        """Let the origins of all processes be the mean of those that have begun."""
        has_begun = (~self.waiting).to(torch.float32)
        total = torch.where(self.waiting, 0.0, self.origin)
        for each in (has_begun, total):
            torch.distributed.all_reduce(each, group=group)
        self.origin.copy_(torch.where(has_begun > 0, total / has_begun.clamp(min=1), NOTHING))

    def waiting_notes(self, part: str, padding: int | None = None) -> list[str]:
        """What to know of a part's scales before training; padding: as in `notes`."""
        waiting, count = self._waiting(padding)
        text = (
            f"{waiting} of {count} learned scales of its {part} are not set yet; they will be "
            "by the first "
        )
        return [f"{text}values that are not 0, NaN or infinite"] if waiting else []

    def notes(self, part: str, padding: int | None = None) -> list[str]:
        """What to know of the scales of a layer's `part` once training is over.

        padding: a row of an embedding's weight that is zero on purpose, if it has blocks of its own
        """
        waiting, count = self._waiting(padding)
        grew, lines = int(self.grew), []
        if waiting:
            lines.append(
                f"{waiting} of {count} scales of its {part} saw only zeros, NaN or "
                "infinities, and were never set")  # fmt: skip
        if grew:
            lines.append(
                f"scales of its {part} were set again in training (steps: {grew}), because "
                f"values exceeded their range more than {LOST:.0f} times")  # fmt: skip
        return lines

    def _waiting(self, padding: int | None) -> tuple[int, int]:
        """How many blocks wait, and of how many."""
        waiting = self.waiting
        if padding is not None:
            waiting = torch.cat([waiting[:padding], waiting[padding + 1 :]])
        return int(waiting.sum()), waiting.numel()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **others: Any
    ) -> None:
        """Also from before there were origins, when what was never begun had the least value."""
        key, learned = f"{prefix}origin", state_dict.get(f"{prefix}{self.name}")
        if learned is not None and key not in state_dict:
            least = self._of(torch.zeros_like(learned, dtype=torch.float32))
            state_dict[key] = torch.where(learned <= least, NOTHING, 0.0)
        super()._load_from_state_dict(state_dict, prefix, *rest, **others)

    def forward(
        self, x: Tensor, qparams: QParams, elements: float, seed: Tensor | None = None
    ) -> Tensor:
        """x [...] float32 through the stored scale, of x's rank; `elements` share one scale.

        Gradients: x as in `bs.fake_quantize`; the step by LSQ's equation 3, and thresholds by the
        same times d step / d log2 t = step ln 2 (TQT, equation 7).
        """
        fmt = self.format
        parameter = self.parameter.reshape(qparams.scale.shape)
        if self.domain == "steps":
            shared = max(elements, FLT_MIN)  # none without rows, and then no gradient either
            step = reference.step_of(qparams, fmt).clamp(min=FLT_MIN)  # or its slope is infinite
            path = parameter * ((shared * fmt.levels.value) ** -0.5 / step)
        else:
            path = parameter * log(2.0)
        path = fmt.block.expand(path, x.shape)
        scale, outer = qparams[:2]  # what `why_not` leaves has no more
        values: Tensor = _FakeQuantize.apply(x, path, scale, outer, str(fmt), seed)
        return values

    def extra_repr(self) -> str:
        return f"{self.name}, {tuple(self.parameter.shape)}"


class _FakeQuantize(torch.autograd.Function):
    """fake_quantize with a gradient for ln(step), which arrives as `path` that broadcasts with x:
    its value does not matter, its slope over the parameter does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, path: Tensor, *rest: Any) -> Tensor:
        scale, outer, fmt, seed = rest
        values: Tensor = primitives.fake_quantize(x, Quantizer(scale, None, outer, fmt, seed))
        ctx.save_for_backward(x, values, scale, outer)
        ctx.fmt, ctx.shape = fmt, path.shape
        return values

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, values, scale, outer = ctx.saved_tensors
        ones = torch.ones_like(x)
        inside = primitives.straight_through(ones, x, Quantizer(scale, None, outer, ctx.fmt)) > 0
        to_x = torch.where(inside, gradient, 0.0)
        # s times equation 3: Q(x / s) - x / s inside, the limit that it stops at outside
        to_path = gradient * torch.where(inside, values - x, values)
        return to_x, to_path.sum_to_size(ctx.shape), None, None, None, None


def _log2(a: Tensor) -> Tensor:
    """log2 of a > 0, exact for powers of two."""
    power = exponent(a)
    return power + torch.log2(a / pow2(power))


def why_not(fmt: Format) -> str | None:
    """Why a scale of this format cannot be learned, or None."""
    if fmt.asym:
        return "asym has a zero point, which is not learned"
    if fmt.offset is not None:
        return "its offset is not learned"
    signed = fmt.span == "signed" or fmt.element.by_sign
    return "the sign of its scale is not learned" if signed else None
