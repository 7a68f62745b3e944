# SPDX-License-Identifier: BSD-3-Clause
"""Every op for formats that kernels know only restated (blockscale.kernels.restate)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.format import Format
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, operand, quantizer
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels import by_sign
from blockscale.kernels.operand import present_parts, strided_like
from blockscale.kernels.registry import ByFormats, Formats, kernel, supporting
from blockscale.kernels.resident import Residents, tensors
from blockscale.kernels.restate import (
    choose_scales,
    for_decoding,
    for_encoding,
    in_rows,
    restated_operand,
    restated_quantizer,
)

Restate = Callable[[Format], Format | None]


BlockErrors = Callable[[Tensor, Quantizer], Tensor | None]


def register(
    backend: str,
    fingerprint: Callable[[Tensor], int],
    block_errors: BlockErrors | None = None,
    *,
    without: Sequence[str] = (),
) -> "RestatedOps":
    """Make every op of a backend take the formats that its kernels know restated.

    fingerprint: as `Residents` takes it
    block_errors: a kernel for `reference.block_errors`, in formats that kernels know; None where
        its blocks are not for it
    without: ops that the backend has no kernel for
    """
    ops = RestatedOps(backend, fingerprint, block_errors)
    by_sign.register(backend, ops, fingerprint)
    errors = ByFormats(
        lambda formats: ops.runs("fake_quantize", for_encoding(*formats) or formats[0])
    )
    kernel("block_errors", backend=backend, supports=errors, last=True)(ops.block_errors)
    for names, restate in (
        (("dequantize", "embedding", "pack", "unpack", "choose_qparams"), for_decoding),
        (
            ("quantize", "choose_quantize", "fake_quantize", "straight_through", "round_columns"),
            for_encoding,
        ),
    ):
        for name in (each for each in names if each not in without):
            supports = ByFormats(ops.supporting(name, restate))
            kernel(name, backend=backend, supports=supports, last=True)(getattr(ops, name))
    for name in ("linear", "conv", "conv_transpose"):
        supports = ByFormats(ops.supporting_products(name))
        kernel(name, backend=backend, supports=supports, last=True)(getattr(ops, name))
    return ops


class RestatedOps:
    """The ops of one backend, each as in blockscale.ops, by that backend's own kernels."""

    def __init__(
        self,
        backend: str,
        fingerprint: Callable[[Tensor], int],
        block_errors: BlockErrors | None = None,
    ):
        self.backend = backend
        self._block_errors = block_errors
        self._weights = Residents(_restate_weight, fingerprint)

    # --- which calls

    def supporting(self, op: str, restate: Restate) -> Callable[[Formats], bool]:
        """Whether a kernel of the backend runs `op` in what `restate` makes of its one format."""

        def supports(formats: Formats) -> bool:
            (fmt,) = formats
            plain = restate(fmt)
            return plain is not None and self.runs(op, plain)

        return supports

    def supporting_products(self, op: str) -> Callable[[Formats], bool]:
        """The same for products, of a weight and, if wanted, a quantized input."""

        def supports(formats: Formats) -> bool:
            weight, *others = formats
            restated = [for_decoding(weight), *map(for_encoding, others)]
            quantizes = all(self.runs("fake_quantize", for_encoding(fmt) or fmt) for fmt in others)
            return any(restated) and quantizes and self.runs(op, restated[0] or weight)

        return supports

    def runs(self, op: str, *formats: Format) -> bool:
        """Whether the backend has a kernel."""
        return supporting(op, self.backend, tuple(map(_without_flat, formats)), ()) is not None

    def run(self, op: str, *args: Any) -> Any:
        """The kernel of a call whose formats it knows."""
        spellings = tuple(
            arg.fmt for arg in args if isinstance(arg, Operand | Quantizer) and arg.fmt
        )
        result = supporting(op, self.backend, spellings, args)
        assert result is not None, (op, spellings)  # `supports` asked
        return result.run(*args)

    # --- codes to values

    def dequantize(self, packed: Operand, dtype: torch.dtype) -> Tensor:
        """As ops.primitives.dequantize."""
        return self.run("dequantize", restated_operand(packed, _decoded(packed)), dtype)

    def embedding(self, weight: Operand, indices: Tensor, dtype: torch.dtype) -> Tensor:
        """As ops.embedding.embedding."""
        return self.run("embedding", self.weight(weight), indices, dtype)

    def pack(self, codes: Tensor, fmt: str) -> Tensor:
        """As ops.primitives.pack."""
        return self._as_tensor("pack", fmt)(codes)

    def unpack(self, packed: Tensor, fmt: str, size: int) -> Tensor:
        """As ops.primitives.unpack."""
        return self._as_tensor("unpack", fmt)(packed, size)

    def _as_tensor(self, op: str, fmt: str) -> Callable[..., Tensor]:
        """`pack` or `unpack`, for which only the element of a format matters."""
        plain = for_decoding(parse(fmt))
        assert plain is not None
        spelling = _without_flat(plain)
        result = supporting(op, self.backend, (spelling,), ())
        assert result is not None
        run = result.run
        return lambda tensor, *size: run(tensor, spelling, *size)

    def weight(self, weight: Operand) -> Operand:
        """A weight in a format that kernels know. What had to be made for it is kept beside it."""
        plain = for_decoding(weight.format)
        if plain is None:
            return weight
        entry = self._weights[weight]
        if entry is None:
            return restated_operand(weight, plain)
        return operand(weight.codes, entry.all_parts(weight), entry.fmt, weight.size)

    # --- values to codes

    def choose_qparams(self, x: Tensor, fmt: str) -> list[Tensor]:
        """As ops.primitives.choose_qparams."""
        return present_parts(self._choose(x, parse(fmt)))

    def choose_quantize(self, x: Tensor, fmt: str, seed: Tensor | None) -> list[Tensor]:
        """As ops.primitives.choose_quantize."""
        qparams = self._choose(x, parse(fmt))
        by = self._with_scale(x, Quantizer(None, None, None, fmt, seed), qparams)
        return [self.run("quantize", x, by), *present_parts(qparams)]

    def quantize(self, x: Tensor, by: Quantizer) -> Tensor:
        """As ops.primitives.quantize."""
        return self.run("quantize", x, self._with_scale(x, by))

    def fake_quantize(self, x: Tensor, by: Quantizer) -> Tensor:
        """As ops.primitives.fake_quantize."""
        return self.run("fake_quantize", x, self._with_scale(x, by))

    def straight_through(self, gradient: Tensor, x: Tensor, by: Quantizer) -> Tensor:
        """As ops.primitives.straight_through."""
        tensor: Tensor = self.run("straight_through", gradient, x, self._with_scale(x, by))
        return strided_like(gradient, tensor) if tensor.shape == gradient.shape else tensor

    def round_columns(
        self, x: Tensor, base: Tensor | None, coupling: Tensor, by: Quantizer
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As ops.round_columns.round_columns."""
        columns: tuple[Tensor, Tensor, Tensor] = self.run(
            "round_columns", x, base, coupling, self._with_scale(x, by)
        )
        return columns

    def _choose(self, x: Tensor, fmt: Format) -> QParams:
        """The scales that x chooses."""

        return choose_scales(x, fmt, self.scale_of, self.block_errors)

    def scale_of(self, x: Tensor, plain: Format) -> Tensor:
        """The scale that x chooses in a format that kernels know, of one level."""
        result = supporting("choose_qparams", self.backend, (plain.spelling,), ())
        assert result is not None, plain
        scales: list[Tensor] = result.run(x, plain.spelling)
        return scales[0]

    def block_errors(self, x: Tensor, qparams: QParams, fmt: Format) -> Tensor:
        """As `reference.block_errors`."""
        again = for_encoding(fmt) or fmt
        by = quantizer(qparams, fmt)
        by = by if again == fmt else restated_quantizer(qparams, by, again, x.shape)
        errors = None if self._block_errors is None else self._block_errors(x, by)
        if errors is None or errors.numel() != qparams.scale.numel():  # blocks that rows cut
            return reference.squared_errors(x, self.run("fake_quantize", x, by), fmt)
        return errors.reshape(qparams.scale.shape)

    def _with_scale(self, x: Tensor, by: Quantizer, qparams: QParams | None = None) -> Quantizer:
        """The scale of x in a format that kernels know: the given one, else the one of x."""
        plain = for_encoding(by.format)
        assert plain is not None
        qparams = qparams or by.qparams or self._choose(x, by.format)
        return restated_quantizer(qparams, by, plain, x.shape)

    # --- products

    def linear(
        self, x: Tensor, weight: Operand, bias: Tensor | None = None, input: Quantizer = UNQUANTIZED
    ) -> Tensor:
        """As ops.linear.linear."""
        ready, dtype = self.weight(weight), x.dtype
        if input.fmt and for_encoding(input.format):
            x = self.fake_quantize(reference.widen(x), input)
            return self.run("linear", x, ready, bias, UNQUANTIZED).to(dtype)
        return self.run("linear", x, ready, bias, input).to(dtype)

    def conv(
        self,
        x: Tensor,
        weight: Operand,
        bias: Tensor | None,
        shape: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        input: Quantizer = UNQUANTIZED,
    ) -> Tensor:
        """As ops.conv.conv."""
        settings = (shape, stride, padding, dilation, groups)
        return self._convolve("conv", x, weight, bias, settings, input)

    def conv_transpose(
        self,
        x: Tensor,
        weight: Operand,
        bias: Tensor | None,
        shape: list[int],
        stride: list[int],
        padding: list[int],
        output_padding: list[int],
        dilation: list[int],
        groups: int,
        input: Quantizer = UNQUANTIZED,
    ) -> Tensor:
        """As ops.conv_transpose.conv_transpose."""
        settings = (shape, stride, padding, output_padding, dilation, groups)
        return self._convolve("conv_transpose", x, weight, bias, settings, input)

    def _convolve(
        self,
        op: str,
        x: Tensor,
        weight: Operand,
        bias: Tensor | None,
        settings: tuple[list[int] | int, ...],
        by: Quantizer,
    ) -> Tensor:
        """What a convolution's kernel gives for a weight and an input in formats that it knows."""
        ready, dtype = self.weight(weight), x.dtype
        if by.fmt and for_encoding(by.format):
            values = self.fake_quantize(reference.widen(x).movedim(1, -1), by)
            x, by = values.movedim(-1, 1), UNQUANTIZED
        return self.run(op, x, ready, bias, *settings, by).to(dtype)


class _RestatedWeight:
    """What was made for a weight: parts of the restated format, None for those of the weight
    itself, which would not be freed if this held them."""

    def __init__(self, parts: QParams, fmt: str, weight: Operand):
        own = {id(part) for part in tensors(weight)}
        self.fmt = fmt
        self._parts = {
            name: None if id(part) in own else part
            for name, part in parts._asdict().items()
            if part is not None
        }

    def all_parts(self, weight: Operand) -> QParams:
        """All parts."""
        qparams = weight.qparams
        by_name = {n: getattr(qparams, n) if p is None else p for n, p in self._parts.items()}
        return QParams(**by_name)

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return sum(part.nbytes for part in self._parts.values() if part is not None)


def _restate_weight(weight: Operand) -> _RestatedWeight | None:
    """What is kept beside a weight; None where that would be more than its codes."""
    ready = restated_operand(weight, _decoded(weight))
    own = tensors(weight)
    apart = {  # a view of a tensor of the weight would keep it alive
        name: part.clone() if part is not None and _is_view(part, own) else part
        for name, part in ready.qparams._asdict().items()
    }
    entry = _RestatedWeight(QParams(**apart), ready.fmt, weight)
    return entry if entry.nbytes <= weight.codes.nbytes else None


def _is_view(part: Tensor, of: tuple[Tensor | None, ...]) -> bool:
    """Whether it is another view of the memory of one of these tensors."""
    there = part.untyped_storage().data_ptr()
    return any(
        each is not None and each is not part and each.untyped_storage().data_ptr() == there
        for each in of
    )


def _decoded(packed: Operand) -> Format:
    plain = for_decoding(packed.format)
    assert plain is not None  # `supports` asked
    return plain


def _without_flat(plain: Format) -> str:
    """The spelling of the format with blocks as they are in some matrix."""
    if not plain.block.flat:
        return plain.spelling
    text = str(plain).split(":", 2)
    return ":".join((text[0], str(in_rows(plain.block, (1, plain.block.flat))), text[2]))
