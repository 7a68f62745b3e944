# SPDX-License-Identifier: BSD-3-Clause
"""An op's operands and the flat arguments of its torch op: there and back, names, defaults."""

import inspect
from math import prod
from typing import get_type_hints

import pytest
import torch
from torch import Tensor

from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, Value
from blockscale.ops import op as ops
from blockscale.ops.op import OPS
from blockscale.ops.operand import signature
from tests.support.op_samples import FORMATS, bits, samples


def linear(x: Tensor, weight: Operand, bias: Tensor | None, input: Quantizer) -> Tensor: ...
def rows(table: Operand, at: Tensor, limit: int = 3) -> Tensor: ...
def between(x: Tensor, by: Quantizer, other: Quantizer, size: int) -> list[Tensor]: ...
def conv(x: Tensor, weight: Operand, shape: list[int]) -> Tensor: ...
def both(a: Value, b: Value, alpha: float | None, y: Quantizer) -> list[Tensor]: ...
def all_of(parts: list[Value], dims: tuple[int, ...], y: Quantizer) -> Tensor: ...


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


def test_values_have_names_of_their_own_and_lists_of_them_a_list_of_each_field() -> None:
    assert signature(both, None).schema(list[Tensor]) == (
        "(Tensor a, Tensor? a_scale, Tensor? a_zero_point, Tensor? a_outer, str a_fmt, "
        "SymInt a_size, Tensor b, Tensor? b_scale, Tensor? b_zero_point, Tensor? b_outer, "
        "str b_fmt, SymInt b_size, float? alpha, Tensor? y_scale, Tensor? y_zero_point, "
        "Tensor? y_outer, str y_fmt, Tensor? y_seed=None, Tensor[]? a_more=None, "
        "Tensor[]? b_more=None, Tensor[]? y_more=None) -> Tensor[]"
    )
    assert signature(all_of, None).schema(Tensor) == (
        "(Tensor[] parts, Tensor?[] parts_scale, Tensor?[] parts_zero_point, "
        "Tensor?[] parts_outer, str[] parts_fmt, SymInt[] parts_size, SymInt[] dims, "
        "Tensor? y_scale, Tensor? y_zero_point, Tensor? y_outer, str y_fmt, "
        "Tensor? y_seed=None, Tensor[]? parts_more=None, Tensor[]? y_more=None) -> Tensor"
    )


def test_further_parts_of_a_list_go_back_to_whom_they_belong() -> None:
    x, one, two = torch.zeros(2, 8), torch.ones(16), torch.full((16,), 2.0)
    book = "book4:group16:fp32"
    given = [Value(x, x, None, None, book, 8, [one]), Value(x), Value(x, x, fmt="int8", size=8)]
    given.append(Value(x, x, None, None, book, 8, [two]))
    takes = signature(all_of, None)
    flat = takes.flatten(given, (1,), UNQUANTIZED)
    assert flat[4] == [book, "", "int8", book] and flat[-2] == [one, two]
    found, dims, by = takes.bind(*flat)
    assert [each.more for each in found] == [[one], None, None, [two]]
    assert (dims, by) == ((1,), UNQUANTIZED)
    assert takes.spellings(given, (1,), UNQUANTIZED) == (book, "", "int8", book, "")


def test_a_type_that_only_infer_schema_knows() -> None:
    def with_device(x: Tensor, where: torch.device, scales: list[float]) -> Tensor: ...

    takes = signature(with_device, None)
    assert takes.schema(Tensor) == "(Tensor x, Device where, float[] scales) -> Tensor"


@pytest.mark.parametrize("name", sorted(OPS))
def test_schemas_are_those_of_infer_schema(name: str) -> None:
    """What is written here is what torch would make of the same parameters."""
    takes, returns = OPS[name].signature, get_type_hints(OPS[name].reference)["return"]
    plain = [p for p in takes.flat if not p.name.endswith("more")]

    def prototype(*_: object) -> None: ...

    prototype.__signature__ = inspect.Signature(plain, return_annotation=returns)
    arguments, result = torch.library.infer_schema(prototype, mutates_args=()).rsplit(") ->", 1)
    more = "".join(f", Tensor[]? {p.name}=None" for p in takes.flat if p not in plain)
    assert takes.schema(returns) == f"{arguments}{more}) ->{result}"


def test_sizes_come_from_other_arguments_where_the_torch_op_has_none() -> None:
    x, codes = torch.zeros(2, 12), torch.zeros(5, 6)
    flat = (x, codes, codes, None, None, "int4", None, None, None, None, "")
    _, weight, bias, by = signature(linear, lambda x: x.shape[-1]).bind(*flat)
    assert (weight.size, weight.fmt, bias, by) == (12, "int4", None, UNQUANTIZED)
    takes = signature(conv, lambda shape: prod(shape[1:]))
    assert takes.bind(x, codes, codes, None, None, "int4", [5, 3, 2, 2])[1].size == 12


@pytest.mark.some(3)
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
    with pytest.raises(TypeError, match=r"NoneType|found None"):
        OPS["dequantize"](None, torch.float32)
