# SPDX-License-Identifier: BSD-3-Clause
"""Hadamard matrices and what is made of them."""

import pytest
import torch

from blockscale.calibration.residual_stream import UnrotatableError, stream_of
from blockscale.calibration.rotated import assign
from blockscale.calibration.rotation_matrices import hadamard, orthogonal, rotate
from tests.support.rotation_models import batches, decoder


def test_hadamard_matrices_of_many_orders() -> None:
    orders = [n for n in range(1, 130) if hadamard(n) is not None]
    unknown = {52, 92, 100, 116}  # prime powers, and orders that Paley's constructions do not give
    assert set(orders) == {1, 2} | (set(range(4, 130, 4)) - unknown)
    for n in [*orders, 384, 1536, 896]:
        h = hadamard(n)
        assert h is not None and bool((h.abs() == 1).all())
        assert torch.equal(h @ h.T, n * torch.eye(n, dtype=torch.float64))


@pytest.mark.some(3)
@pytest.mark.parametrize("keeps_mean", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7, 30, 48, 52, 100])
def test_orthogonal(n: int, *, keeps_mean: bool) -> None:
    r = orthogonal(n, 3, keeps_mean=keeps_mean)
    torch.testing.assert_close(r @ r.T, torch.eye(n, dtype=r.dtype), rtol=0, atol=1e-13)
    assert torch.equal(r, orthogonal(n, 3, keeps_mean=keeps_mean))
    if keeps_mean:
        ones = torch.ones(n, dtype=r.dtype)
        torch.testing.assert_close(ones @ r, ones, rtol=0, atol=1e-12)
        torch.testing.assert_close(r @ ones, ones, rtol=0, atol=1e-12)
    elif n > 2:
        assert not torch.equal(r, orthogonal(n, 4))


def test_an_outlier_is_spread() -> None:
    for keeps_mean in (False, True):
        assert orthogonal(384, 0, keeps_mean=keeps_mean).abs().max() < 5 / 384**0.5


# Parameters of a rotated model, and back.


def test_the_inverse_undoes_it() -> None:
    model = decoder("mistral")
    stream = stream_of(model, batches()[0])
    r, heads = orthogonal(48, 0), {12: orthogonal(12, 1)}
    gain = model.model.norm.weight.detach().clone()
    head, writer = model.lm_head.weight.clone(), model.model.layers[0].mlp.down_proj.weight.clone()
    assign(model, rotate(model, stream, r, heads))
    expected = (head * gain) @ r
    torch.testing.assert_close(model.lm_head.weight.detach(), expected.detach())
    assign(model, rotate(model, stream, r.T, {12: heads[12].T}))
    torch.testing.assert_close(model.lm_head.weight / gain, head)
    torch.testing.assert_close(model.model.layers[0].mlp.down_proj.weight, writer)
    assert bool((model.model.norm.weight == 1).all())


def test_a_bias_without_a_gain_is_refused() -> None:
    model = decoder("gpt2")
    with torch.no_grad():
        model.transformer.ln_f.weight[3] = 0
    stream = stream_of(model, batches()[0])
    with pytest.raises(UnrotatableError, match="gain is 0"):
        list(rotate(model, stream, orthogonal(48, 0), {}))
