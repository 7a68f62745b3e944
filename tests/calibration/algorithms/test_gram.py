# SPDX-License-Identifier: BSD-3-Clause
"""A gram matrix is refused unless it could be X^T X; its diagonal is how much inputs count."""

import pytest
import torch

from blockscale.calibration.algorithms.gram import checked, importance_of


def test_a_gram_matrix_comes_back_in_float64_and_symmetric() -> None:
    x = torch.randn(50, 7)
    gram = x.T @ x
    gram[0, 1] += 1e-5 * gram.diagonal().max()  # as another order of float32 sums would
    wide = checked(gram, 7, "layer")
    assert wide.dtype == torch.float64
    assert torch.equal(wide, wide.T)
    torch.testing.assert_close(wide, (x.double().T @ x.double()), rtol=1e-3, atol=1e-2)
    assert checked(torch.zeros(0, 0), 0, "layer").shape == (0, 0)


@pytest.mark.parametrize(
    ("gram", "words"),
    [
        (torch.eye(4), r"head: expected the gram matrix \[3, 3\] of its inputs, found \(4, 4\)"),
        (torch.full((3, 3), torch.nan), "head: the gram matrix of its inputs has NaN or infinity"),
        (torch.full((3, 3), torch.inf), "head: the gram matrix of its inputs has NaN or infinity"),
        (-torch.eye(3), r"head: the Gram matrix of its inputs has a negative diagonal, which no X\^T X has: compute it again"),
        (torch.eye(3) + torch.ones(3, 3).triu(1), r"X\^T X is symmetric, this one is not"),
    ],
)
def test_what_is_no_gram_matrix(gram: torch.Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        checked(gram, 3, "head")


def test_importance_is_the_diagonal_and_never_zero() -> None:
    importance, notes = importance_of(torch.diag(torch.tensor([4.0, 0.0, 9.0])), 3, "layer")
    assert importance is not None and importance.tolist() == [4.0, 4.0, 9.0]
    assert notes == []
    for gram, note in (
        (None, "nothing known of its inputs: all columns count the same"),
        (torch.zeros(3, 3), "all its inputs were 0: all columns count the same"),
    ):
        assert importance_of(gram, 3, "layer") == (None, [note])
