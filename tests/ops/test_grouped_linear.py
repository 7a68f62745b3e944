# SPDX-License-Identifier: BSD-3-Clause
"""One product for all matrices of a stack, against `linear` with each."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Operand, Quantizer, operand, quantizer
from blockscale.core.parse import parse
from blockscale.core.stacks import groups, matrix
from blockscale.core.stacks import parts as cut
from blockscale.ops import grouped_linear as module
from blockscale.ops import primitives as P
from blockscale.ops.grouped_linear import each as chosen_matrices
from blockscale.ops.grouped_linear import grouped, grouped_linear, product, values, waits
from blockscale.ops.linear import linear
from blockscale.ops.primitives import dequantize
from tests.support.op_samples import Made
from tests.support.stacked import SPELLINGS, stacked

ENDS = torch.tensor([0, 4, 9])


def samples(made: Made) -> dict[str, list[tuple]]:
    x, stack, fmt = made.x, torch.randn(1, 4, made.x.shape[-1]), parse(made.fmt)
    qparams = P.from_list(P.choose_qparams.reference(stack, str(fmt)), fmt)
    by = quantizer(qparams, fmt, made.seed)
    whole = operand(P.quantize.reference(stack, by), qparams, fmt, stack.shape[-1])
    ends = torch.tensor([len(x) - 1])
    return {
        "grouped_linear": [
            (x, whole, ends, None, UNQUANTIZED),
            (x, whole, ends, torch.randn(1, 4), made.own),
        ]
    }


def each(x: Tensor, whole: Operand, ends: Tensor, bias: Tensor | None, by: str = "") -> Tensor:
    """The same, a matrix after the other, through the layer's own op."""
    y = x.new_zeros(len(x), whole.codes.shape[1])
    for index, start, end in groups(ends):
        one = matrix(whole, index)
        assert one is not None
        own = None if bias is None else bias[index]
        y[start:end] = product(x[start:end], one, own, Quantizer(None, None, None, by))
    return y


@pytest.mark.some(36)
@pytest.mark.parametrize("by", ["", "int8:token:fp32", "mxfp8", "nvfp4", "int8:tensor:fp32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_bits_of_each_matrix_alone(spelling: str, dtype: torch.dtype, by: str) -> None:
    """On one thread and on two; rows of nobody are 0; the inputs of a matrix are quantized by
    themselves, so that one scale for all of them is that of its own rows."""
    whole, by = stacked(spelling, parts=2), by and str(parse(by))
    x, bias = torch.randn(11, 64).to(dtype), torch.randn(3, 12)
    before, expected = torch.get_num_threads(), each(x, whole, ENDS, bias, by)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            y = grouped_linear(x, whole, ENDS, bias, Quantizer(None, None, None, by))
        finally:
            torch.set_num_threads(before)
        assert torch.equal(y, expected)
    assert not y[9:].any()


def test_a_static_scale_for_each_matrix() -> None:
    whole, x, fmt = stacked("int8_channel"), torch.randn(9, 64), str(parse("int8"))
    scales = torch.tensor([0.01, 0.02, 0.03]).reshape(3, 1, 1)
    y = grouped_linear(x, whole, ENDS, None, Quantizer(scales, None, None, fmt))
    for index, start, end in groups(ENDS):
        one, own = matrix(whole, index), Quantizer(scales[index], None, None, fmt)
        assert torch.equal(y[start:end], product(x[start:end], one, None, own))
    shared = Quantizer(scales[1], None, None, fmt)
    assert torch.equal(grouped_linear(x, whole, ENDS, None, shared)[:4], y[:4])


def test_nan_stays_in_its_row() -> None:
    """A token that is NaN spoils nothing but itself, whatever it shares an expert with."""
    whole, x = stacked("nvfp4", parts=2), torch.randn(9, 64)
    others = [0, 1, 3, 4, 5, 7, 8]
    for invariant in (False, True):
        with bs.use(batch_invariant=invariant):
            clean, spoilt = grouped_linear(x, whole, ENDS), x.clone()
            spoilt[2], spoilt[6, 1] = torch.nan, torch.inf
            y = grouped_linear(spoilt, whole, ENDS)
        assert y[2].isnan().all()
        assert not y[6].isfinite().any()
        torch.testing.assert_close(y[others], clean[others], rtol=1e-5, atol=1e-5)
        assert not invariant or torch.equal(y[others], clean[others])


def test_ends_of_both_dtypes_and_a_row_in_any_batch() -> None:
    whole, x = stacked("mxfp4"), torch.randn(9, 64)
    assert torch.equal(grouped_linear(x, whole, ENDS.int()), grouped_linear(x, whole, ENDS))
    with bs.use(batch_invariant=True):
        y = grouped_linear(x, whole, ENDS)
        alone = grouped_linear(x[5:6], whole, torch.tensor([0, 0, 1]))
    assert torch.equal(y[5:6], alone)


def test_matrices_that_share_numbers_are_refused() -> None:
    whole: Operand = bs.quantize(torch.randn(4, 12, 64), "int8:block2x12x64:fp32").operand
    with pytest.raises(ValueError, match="numbers that several matrices of a stack share"):
        grouped_linear(torch.randn(2, 64), whole, torch.tensor([0, 1, 1, 2]))
    with pytest.raises(ValueError, match="the rows of matrix 1 would be 3 to 2"):
        grouped_linear(torch.randn(4, 64), stacked("mxfp4"), torch.tensor([3, 2, 4]))


def test_gradients_are_those_of_each_matrix() -> None:
    whole, found = stacked("mxfp4"), []
    for run in (grouped_linear, each):
        x = torch.randn(9, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        bias = torch.randn(3, 12, generator=torch.Generator().manual_seed(1)).requires_grad_()
        (run(x, whole, ENDS, bias) ** 2).sum().backward()
        found.append((x.grad, bias.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_forward_mode() -> None:
    whole, x, along = stacked("mxfp4"), torch.randn(9, 64), torch.randn(9, 64)
    _, tangent = torch.func.jvp(lambda x: grouped_linear(x, whole, ENDS), (x,), (along,))
    torch.testing.assert_close(tangent, grouped_linear(along, whole, ENDS))


def test_a_graph_keeps_one_call() -> None:
    whole = stacked("mxfp4")

    class Model(torch.nn.Module):
        def forward(self, x: Tensor, ends: Tensor) -> Tensor:
            return grouped_linear(x, whole, ends)

    x = torch.randn(9, 64)
    program = torch.export.export(Model(), (x, ENDS))
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert targets == ["blockscale.grouped_linear.default"]
    assert torch.equal(program.module()(x, ENDS), grouped_linear(x, whole, ENDS))


def test_what_waits_for_ends() -> None:
    assert waits(torch.randn(2, 64), stacked("mxfp4"))


def test_nothing_to_do() -> None:
    whole, bias = stacked("mxfp4"), torch.randn(3, 12)
    none = torch.zeros(3, dtype=torch.int64)
    assert grouped_linear(torch.randn(0, 64), whole, none).shape == (0, 12)
    assert not grouped_linear(torch.randn(2, 64), whole, none, bias).any()


# What code that reads a stack asks of it.


def test_a_change_in_place_is_seen() -> None:
    """As load_state_dict does it: what kernels made of a matrix before is not used any more."""
    whole, x = stacked("int8_channel"), torch.randn(2, 64)
    before = grouped(x, whole, [0, 2, 2])
    whole.scale.mul_(2)
    after = grouped(x, whole, [0, 2, 2])
    assert before is not None
    assert after is not None
    assert torch.equal(after, before * 2)
    whole.codes.zero_()
    zero = grouped(x, whole, [0, 2, 2])
    assert zero is not None
    assert not zero.any()


@pytest.mark.some(18)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("counts", [(2, 0, 3), (0, 0, 5), (0, 0, 0)])
def test_rows_meet_their_matrix(spelling: str, parts: int, counts: tuple[int, ...]) -> None:
    """Each group equals `linear` with the matrix alone, to the bit; rows of nobody are 0."""
    whole, x = stacked(spelling, parts=parts), torch.randn(6, 64)
    ends = [sum(counts[: i + 1]) for i in range(3)]
    got = grouped(x, whole, ends)
    assert got is not None
    assert not got[ends[-1] :].any()
    dense, start = dequantize(whole, torch.float32), 0
    with bs.use("reference"):
        exact = grouped(x, whole, ends)
    for index, end in enumerate(ends):
        one = matrix(whole, index)
        assert one is not None
        if end == start:
            continue
        rows = x[start:end]
        assert torch.equal(got[start:end], torch.cat([linear(rows, p) for p in cut(one)], -1))
        bound = 64 * 2.0**-24 * (rows.abs() @ dense[index].abs().T)
        assert bool(((got[start:end] - F.linear(rows, dense[index])).abs() <= bound).all())
        assert exact is not None
        assert bool(((exact[start:end] - F.linear(rows, dense[index])).abs() <= bound).all())
        start = end


def test_no_product_where_several_matrices_share_numbers() -> None:
    """One scale for two of four matrices is no scale of one of them."""
    whole: Operand = bs.quantize(torch.randn(4, 12, 64), "int8:block2x12x64:fp32").operand
    assert grouped(torch.randn(2, 64), whole, [2, 2, 2, 2]) is None
    assert values(whole, torch.tensor([1]), torch.float32) is None
    assert chosen_matrices(torch.randn(1, 2, 64), whole, torch.tensor([1])) is None


def test_only_the_chosen_matrices_are_dequantized(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = matrix

    def seen(whole: Operand, index: int) -> Operand | None:
        asked.append(index)
        return real(whole, index)

    monkeypatch.setattr(module, "matrix", seen)
    values(stacked("mxfp4", experts=5), torch.tensor([2, 2, 2]), torch.float32)
    assert asked == [2]


def test_each_row_with_the_matrix_it_chose() -> None:
    whole, x = stacked("nvfp4", parts=2), torch.randn(5, 2, 64)
    chosen = torch.tensor([2, 0, 2, 1, 0])
    got = chosen_matrices(x, whole, chosen)
    dense = dequantize(whole, torch.float32)
    assert got is not None
    assert got.shape == (5, 2, 12)
    expected = torch.bmm(x, dense[chosen].mT)
    assert bool(
        ((got - expected).abs() <= 64 * 2.0**-24 * torch.bmm(x.abs(), dense[chosen].mT.abs())).all()
    )
    found = values(whole, chosen.reshape(5, 1), torch.bfloat16)
    assert found is not None
    assert torch.equal(found, dense[chosen.reshape(5, 1)].to(torch.bfloat16))
    none = values(whole, chosen[:0], torch.float32)
    assert none is not None
    assert none.shape == (0, 12, 64)


def test_a_bias_goes_to_its_part() -> None:
    whole, x, bias = stacked("nvfp4", parts=2), torch.randn(2, 64), torch.randn(12)
    one = matrix(whole, 0)
    assert one is not None
    assert torch.equal(product(x, one, bias), product(x, one) + bias)


def test_inference_tensors() -> None:
    """Their changes are not counted, so nothing is kept of them."""
    with torch.inference_mode():
        whole, x = stacked("int8_channel"), torch.randn(1, 64)
        before = grouped(x, whole, [1, 1, 1])
        whole.codes.zero_()
        after = grouped(x, whole, [1, 1, 1])
    assert before is not None
    assert after is not None
    assert before.any()
    assert not after.any()


def test_gradients_pass_through_the_dequantized_matrix() -> None:
    whole = stacked("nvfp4", parts=2)
    x: Tensor = torch.randn(4, 64, requires_grad=True)
    y = grouped(x, whole, [1, 1, 4])
    assert y is not None
    y.sum().backward()
    dense = dequantize(whole, torch.float32)
    expected = torch.stack([dense[0].sum(0), *[dense[2].sum(0)] * 3])
    torch.testing.assert_close(x.grad, expected, rtol=1e-5, atol=1e-4)
