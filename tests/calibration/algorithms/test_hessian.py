# SPDX-License-Identifier: BSD-3-Clause
"""A gram matrix is refused unless it could be X^T X; its diagonal is how much inputs count."""

import pytest
import torch

from blockscale.calibration.algorithms.hessian import OutputError, check_gram, importance_of
from blockscale.calibration.algorithms.smoothquant import SmoothQuant, divided_by
from blockscale.core.parse import parse
from tests.calibration.algorithms.smoothing import INT8, prepared
from tests.calibration.algorithms.transforms import error, outlying, stats_of


def test_a_gram_matrix_comes_back_in_float64_and_symmetric() -> None:
    x = torch.randn(50, 7)
    gram = x.T @ x
    gram[0, 1] += 1e-5 * gram.diagonal().max()  # as another order of float32 sums would
    wide = check_gram(gram, 7, "layer")
    assert wide.dtype == torch.float64
    assert torch.equal(wide, wide.T)
    torch.testing.assert_close(wide, (x.double().T @ x.double()), rtol=1e-3, atol=1e-2)
    assert check_gram(torch.zeros(0, 0), 0, "layer").shape == (0, 0)


@pytest.mark.parametrize(
    ("gram", "words"),
    [
        (torch.eye(4), r"head: expected the Gram matrix \[3, 3\] of its inputs, found \(4, 4\)"),
        (
            torch.full((3, 3), torch.nan),
            "head: the Gram matrix of its inputs holds NaN or infinity",
        ),
        (
            torch.full((3, 3), torch.inf),
            "head: the Gram matrix of its inputs holds NaN or infinity",
        ),
        (
            -torch.eye(3),
            r"head: the Gram matrix of its inputs has a negative diagonal, which no X\^T X has",
        ),
        (torch.eye(3) + torch.ones(3, 3).triu(1), r"is not symmetric"),
    ],
)
def test_what_is_no_gram_matrix(gram: torch.Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_gram(gram, 3, "head")


def test_importance_is_the_diagonal_and_never_zero() -> None:
    importance, notes = importance_of(torch.diag(torch.tensor([4.0, 0.0, 9.0])), 3, "layer")
    assert importance is not None and importance.tolist() == [4.0, 4.0, 9.0]
    assert notes == []
    for gram, note in (
        (None, "no data about its inputs: all columns have the same weight"),
        (torch.zeros(3, 3), "all its inputs were 0: all columns have the same weight"),
    ):
        assert importance_of(gram, 3, "layer") == (None, [note])


# A transform is taken where it lowers the error of the layer's output.


def test_the_search_leaves_no_trace() -> None:
    weight, x = outlying()
    kept, stats, state = weight.clone(), stats_of(x), torch.get_rng_state()
    weight.requires_grad_()
    fmt = parse("int4:group8:fp32:stochastic")
    given = parse("int4:token:fp32:stochastic")
    before, _ = SmoothQuant().prepare(weight, fmt, given, stats, "layer")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(weight, kept)
    assert not before.factor.requires_grad


def test_weights_that_hold_nan_are_left_alone() -> None:
    weight, x = outlying()
    for odd in (torch.nan, torch.inf):
        weight[0, 0] = odd
        assert prepared(SmoothQuant(), weight, x) == (
            None, ["not transformed: its weight holds a NaN or an infinity"],
        )  # fmt: skip


def test_nothing_to_gain() -> None:
    weight, x = torch.eye(4), torch.eye(4)
    assert prepared(SmoothQuant(), weight, x, "int8", "int8")[1] == [
        "not transformed: its output has no error"
    ]


def test_the_error_is_that_of_the_definition() -> None:
    weight, x = outlying()
    before = divided_by(x.abs().amax(0), pow2=False)
    for given in (None, "int8_token", "int8", "mxfp8", "int8:channel-1:fp32"):
        form = None if given is None else parse(given)
        measured = OutputError(weight, INT8, form, stats_of(x), "layer")
        for each in (None, before):
            expected = error(each, weight, x, "int8_channel", given)
            assert measured.of(each) == pytest.approx(expected, rel=1e-3)
