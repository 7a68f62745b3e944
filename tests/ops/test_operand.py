"""An op's operands and the flat arguments of its torch op: there and back, names, defaults."""

from math import prod

import pytest
import torch
from torch import Tensor

from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer
from blockscale.ops import op as ops
from blockscale.ops.op import OPS
from blockscale.ops.operand import signature
from tests.ops.samples import FORMATS, bits, samples


def linear(x: Tensor, weight: Operand, bias: Tensor | None, input: Quantizer) -> Tensor: ...
def rows(table: Operand, at: Tensor, limit: int = 3) -> Tensor: ...
def between(x: Tensor, by: Quantizer, other: Quantizer, size: int) -> list[Tensor]: ...
def conv(x: Tensor, weight: Operand, shape: list[int]) -> Tensor: ...


def test_names_and_defaults() -> None:
    """The names are those of earlier releases: exported programs call arguments by name."""
    takes = signature(linear, lambda x: x.shape[-1])
    assert takes.names == (
        *("x", "weight", "scale", "zero_point", "outer", "fmt", "bias"),
        *("input_scale", "input_zero_point", "input_outer", "input_fmt", "input_seed"),
        *("more", "input_more"),  # after all that earlier releases knew
    )
    assert takes.schema(Tensor) == (
        "(Tensor x, Tensor weight, Tensor scale, Tensor? zero_point, Tensor? outer, str fmt, "
        "Tensor? bias, Tensor? input_scale, Tensor? input_zero_point, Tensor? input_outer, "
        "str input_fmt, Tensor? input_seed=None, Tensor[]? more=None, Tensor[]? input_more=None) "
        "-> Tensor"
    )
    assert signature(rows, None).schema(Tensor) == (
        "(Tensor table, Tensor scale, Tensor? zero_point, Tensor? outer, str fmt, SymInt size, "
        "Tensor at, SymInt limit=3, Tensor[]? more=None) -> Tensor"
    )
    takes = signature(between, None)  # torch wants defaults at the end only
    assert takes.schema(list[Tensor]) == (
        "(Tensor x, Tensor? scale, Tensor? zero_point, Tensor? outer, str fmt, Tensor? seed, "
        "Tensor? other_scale, Tensor? other_zero_point, Tensor? other_outer, str other_fmt, "
        "Tensor? other_seed, SymInt size, Tensor[]? more=None, Tensor[]? other_more=None) "
        "-> Tensor[]"
    )


def test_sizes_come_from_other_arguments_where_the_torch_op_has_none() -> None:
    x, codes = torch.zeros(2, 12), torch.zeros(5, 6)
    flat = (x, codes, codes, None, None, "int4", None, None, None, None, "")
    _, weight, bias, by = signature(linear, lambda x: x.shape[-1]).bind(*flat)
    assert (weight.size, weight.fmt, bias, by) == (12, "int4", None, UNQUANTIZED)
    takes = signature(conv, lambda shape: prod(shape[1:]))
    assert takes.bind(x, codes, codes, None, None, "int4", [5, 3, 2, 2])[1].size == 12


@pytest.mark.parametrize("fmt", FORMATS)
def test_there_and_back(fmt: str) -> None:
    for name, many in samples(fmt).items():
        takes = OPS[name].signature
        for args in many:
            flat = OPS[name].flatten(*args)
            assert len(flat) == len(takes.flat)
            for got, wanted in zip(takes.bind(*flat), args, strict=True):
                assert type(got) is type(wanted)
                if isinstance(wanted, tuple):
                    assert all(a is b or a == b for a, b in zip(got, wanted, strict=True))
                else:
                    assert got is wanted or got == wanted
            assert set(takes.spellings(*args)) <= {fmt, ""}


def test_arguments_that_are_left_out_have_their_defaults() -> None:
    made = samples("int8:token:fp32")["linear"][0]
    short, full = OPS["linear"](*made[:2]), OPS["linear"](*made)
    assert bits(short) == bits(full)
    flat = OPS["linear"].flatten(*made)
    assert bits(OPS["linear"].overload(*flat[:-1])) == bits(full)  # without the seed


def test_an_op_without_a_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to be a ValueError: 'fmt' is not in list."""
    monkeypatch.setattr(ops, "OPS", {})

    @ops.op()
    def halved_in_a_test(x: Tensor) -> Tensor:
        return x / 2

    x = torch.randn(3, 4)
    with pytest.warns(UserWarning, match="no cpu kernel runs halved_in_a_test on these tensors"):
        assert torch.equal(halved_in_a_test(x), x / 2)
    torch.library.opcheck(halved_in_a_test.overload, (x,))


def test_an_operand_that_is_none() -> None:
    """As a tensor that is None: an error, not a wrong call."""
    with pytest.raises(TypeError, match="NoneType"):
        OPS["dequantize"](None, torch.float32)
