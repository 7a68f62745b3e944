# SPDX-License-Identifier: BSD-3-Clause
"""What kernels of every backend check of a call's tensors, and the memory they take."""

import pytest
import torch
from torch import Tensor

from blockscale.core import pack as packing
from blockscale.core import reference
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.operand import Storage, in_order, new, present_parts, strided_like

# bits below, at and above a byte; one and two levels; zero points; every kind of block
FORMATS = (
    "int8:tensor:fp32",
    "int16:token:bf16",
    "int5:group4:fp16:asym",
    "e2m1:group16:e4m3",
    "int4:tile2x4:(uint6:group4:fp32):asym",
    "binary:channel0:fp32",
    "e4m3:group32:e8m0/floor",
)
SHAPES = ((6, 20), (2, 3, 8), (5, 1), (0, 4))
META = torch.device("meta")


def parts_of(fmt: str, shape: tuple[int, ...]) -> QParams:
    return reference.choose_qparams(torch.ones(shape), parse(fmt))


@pytest.mark.some(4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fmt", FORMATS)
def test_new_memory_is_what_the_reference_gives(fmt: str, shape: tuple[int, ...]) -> None:
    storage, x = Storage(parse(fmt)), torch.ones(shape)
    expected = parts_of(fmt, shape)
    codes = packing.pack(reference.quantize(x, expected, parse(fmt), None), parse(fmt).element)
    found = (*storage.new_parts(x.shape), storage.new_packed(x.shape))
    for part, wanted in zip(found, (*expected, codes), strict=True):
        assert (part is None) == (wanted is None)
        if part is not None and wanted is not None:
            assert (part.dtype, part.shape) == (wanted.dtype, wanted.shape)
    patterns = storage.new_patterns(shape)
    assert patterns.shape == shape and patterns.itemsize * 8 >= storage.bits


def test_new_memory_lies_on_the_device() -> None:
    storage = Storage(parse("int4:group16:(uint6:group4:fp32):asym"))
    parts = storage.new_parts((4, 64), META)
    assert [name for name, part in parts._asdict().items() if part is not None] == [
        *("scale", "outer", "zero_point")
    ]
    codes = storage.new_packed((4, 64), META), storage.new_patterns((4, 64), META)
    for part in (*parts, *codes):
        assert part is None or part.device == META
    assert new((), torch.float32).shape == new((), torch.float32, META).shape == ()


@pytest.mark.parametrize("fmt", FORMATS)
def test_what_fits_is_passed_on(fmt: str) -> None:
    storage, shape = Storage(parse(fmt)), (6, 20)
    given = parts_of(fmt, shape)
    for device in (None, torch.device("cpu")):
        found = storage.checked_parts(shape, given.scale, given.zero_point, given.outer, device)
        assert all(a is b for a, b in zip(found, given, strict=True))
        packed = storage.new_packed(shape)
        assert storage.checked_codes(packed, shape, device) is packed


def test_what_lies_otherwise_is_brought_in_order() -> None:
    storage = Storage(parse("int8:token:fp32:asym"))
    zero = storage.new_parts((6, 20)).zero_point
    assert zero is not None
    wide = torch.arange(12.0).reshape(6, 2)
    found = storage.checked_parts((6, 20), wide[:, :1], zero, None)
    assert found.scale.is_contiguous() and found.scale.equal(wide[:, :1])
    packed = torch.arange(240, dtype=torch.uint8).view(torch.int8).reshape(20, 12)[:, :6].t()
    ordered = storage.checked_codes(packed, (6, 20))
    assert ordered.is_contiguous() and ordered.equal(packed)


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
@pytest.mark.parametrize(
    "part", [torch.ones(6, 2), torch.ones(6), torch.ones(6, 1).half(), torch.ones(6, 1).to("meta")]
)
def test_a_scale_that_misfits(part: Tensor, device: torch.device | None) -> None:
    storage = Storage(parse("int8:token:fp32"))
    place = "the CPU" if device is None else "cpu"
    words = (
        rf"int8:token:fp32: expected torch.float32 of shape \(6, 1\) on {place}, found "
        rf"{part.dtype} of shape \({', '.join(map(str, part.shape))},?\) on {part.device}"
    )
    with pytest.raises(ValueError, match=words):
        storage.checked_parts((6, 20), part, None, None, device)


def test_parts_too_many_or_too_few() -> None:
    one, zero = torch.ones(6, 1), torch.zeros(6, 1, dtype=torch.int32)
    plain, asym = Storage(parse("int8:token:fp32")), Storage(parse("int8:token:fp32:asym"))
    two = Storage(parse("e2m1:group16:e4m3"))
    with pytest.raises(ValueError, match=r"expected a scale for blocks \(6, 1\), found \(tensor"):
        plain.checked_parts((6, 20), one, zero, None)
    with pytest.raises(ValueError, match=r"expected a scale for blocks \(6, 1\)"):
        plain.checked_parts((6, 20), one, None, one)
    with pytest.raises(ValueError, match=r"expected a scale, a zero point for blocks \(6, 1\)"):
        asym.checked_parts((6, 20), one, None, None)
    with pytest.raises(ValueError, match=r"expected a scale, an outer scale for blocks \(6, 2\)"):
        two.checked_parts((6, 20), one, None, None)


@pytest.mark.parametrize(
    ("dtype", "shape"), [(torch.uint8, (6, 11)), (torch.int8, (6, 10)), (torch.uint8, (10,))]
)
def test_codes_that_misfit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    words = (
        r"codes of shape \(6, 20\) are packed as torch\.uint8 of shape \(6, 10\) on the CPU, found "
        rf"{dtype} of shape \({', '.join(map(str, shape))},?\) on cpu"
    )
    with pytest.raises(ValueError, match=words):
        Storage(parse("int4:token:fp32")).checked_codes(torch.zeros(shape, dtype=dtype), (6, 20))
    elsewhere = torch.zeros(6, 10, dtype=torch.uint8, device="meta")
    with pytest.raises(ValueError, match=r"on cpu, found .* on meta"):
        storage = Storage(parse("int4:token:fp32"))
        storage.checked_codes(elsewhere, (6, 20), torch.device("cpu"))


def test_a_block_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="dimension"):
        Storage(parse("int8:tile2x4:fp32")).new_parts((6,))


def test_seeds() -> None:
    plain, drawn = Storage(parse("int8:token:fp32")), Storage(parse("int8:token:fp32:stochastic"))
    assert plain.checked_seed(None) is None is plain.checked_seed(torch.tensor(3.0))
    for seed in (torch.tensor(3), torch.tensor([3, 64])):
        assert drawn.checked_seed(seed) is seed
    with pytest.raises(ValueError, match="stochastic rounding needs a seed"):
        drawn.checked_seed(None)
    for wrong in (torch.tensor(3.0), torch.tensor([1, 2, 3]), torch.tensor(3, dtype=torch.int32)):
        for anywhere in (False, True):
            with pytest.raises(
                ValueError, match=rf"a seed is int64 of shape .*, not {wrong.dtype} \("
            ):
                drawn.checked_seed(wrong, anywhere=anywhere)
    elsewhere = torch.zeros((), dtype=torch.int64, device="meta")
    assert drawn.checked_seed(elsewhere, anywhere=True) is elsewhere
    with pytest.raises(ValueError, match=r"or \[2\] on the CPU, not torch\.int64 \(\) on meta"):
        drawn.checked_seed(elsewhere)


def test_in_order() -> None:
    x = torch.arange(40, dtype=torch.int16)
    assert in_order(x) is x
    assert in_order(x.view(4, 10).t()).is_contiguous()
    assert in_order(x[1:]).data_ptr() == x[1:].data_ptr()
    misaligned = torch.frombuffer(bytearray(range(43)), dtype=torch.int16, offset=1)
    assert misaligned.data_ptr() % 2
    moved = in_order(misaligned)
    assert moved.data_ptr() % 2 == 0 and moved.equal(misaligned)


def test_in_order_for_words() -> None:
    x = torch.arange(40, dtype=torch.int16)
    assert in_order(x, 4) is x
    assert in_order(x.view(4, 10).t(), 4).is_contiguous()
    moved = in_order(x[1:], 4)
    assert moved.data_ptr() % 4 == 0 and moved.equal(x[1:])
    assert in_order(x[2:], 4).data_ptr() == x[2:].data_ptr()


def test_strides_are_those_of_empty_like() -> None:
    values = torch.arange(24.0).reshape(2, 3, 4)
    for x in (
        torch.zeros(2, 3, 4),
        torch.zeros(4, 3, 2).permute(2, 1, 0),
        torch.zeros(2, 3, 8)[..., ::2],
        torch.zeros(1, 3, 4).expand(2, 3, 4),
    ):
        found = strided_like(x, values.clone())
        assert found.equal(values)
        assert found.stride() == torch.empty_like(x).stride()


def test_listed() -> None:
    scale, outer, zero = torch.zeros(1), torch.zeros(2), torch.zeros(3)
    assert present_parts(QParams(scale, None, None)) == [scale]
    assert [len(part) for part in present_parts(QParams(scale, outer, zero))] == [1, 2, 3]
    assert [len(part) for part in present_parts(QParams(scale, None, zero))] == [1, 3]
