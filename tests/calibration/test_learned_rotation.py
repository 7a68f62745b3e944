# SPDX-License-Identifier: BSD-3-Clause
"""Learned rotations: orthogonal, and no worse than the fixed one."""

import pytest
import torch

from blockscale.calibration.algorithms.spinquant import RotationSettings, cayley, divergence, learn
from blockscale.calibration.residual_stream import stream_of
from blockscale.calibration.rotated import logits
from blockscale.calibration.rotation_matrices import orthogonal
from blockscale.core.recipe import Recipe
from tests.support.rotation_models import batches, decoder

RECIPE = Recipe("int4:group16:fp32", input="int4:token:fp32", skip=["*head", "*embed*", "*wte"])


@pytest.mark.parametrize("keeps_mean", [False, True])
def test_steps_stay_orthogonal_and_go_down(*, keeps_mean: bool) -> None:
    r = orthogonal(12, 0, keeps_mean=keeps_mean)
    skew = torch.linspace(-1, 1, 144, dtype=r.dtype).sin().reshape(12, 12)
    skew = skew - skew.T
    if keeps_mean:
        skew = skew - skew.mean(0) - skew.mean(1, keepdim=True) + skew.mean()
    target = r @ torch.linalg.matrix_exp(skew / 2)
    first = float((r - target).square().sum())
    for _ in range(60):
        r, _ = cayley(r, 2 * (r - target), 0.3, keeps_mean=keeps_mean)
        torch.testing.assert_close(r.T @ r, torch.eye(12, dtype=r.dtype), rtol=0, atol=1e-10)
    assert float((r - target).square().sum()) < first / 2
    if keeps_mean:
        torch.testing.assert_close(r.sum(0), torch.ones(12, dtype=r.dtype))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_it_is_never_worse_and_learns(name: str) -> None:
    model, data = decoder(name, torch.float32), batches()
    stream, before = stream_of(model, data[0]), logits(model, data[0]).detach()
    with torch.no_grad():
        rotation, notes = learn(model, stream, RECIPE, data, RotationSettings(8, 1.5, 2))
    assert torch.equal(logits(model, data[0]), before)
    assert rotation is not None and "loss" in notes[0]
    first, last = (float(each) for each in notes[0].rpartition("loss ")[2].split(" -> "))
    assert last < first
    eye = torch.eye(48, dtype=torch.float64)
    torch.testing.assert_close(rotation.T @ rotation, eye, rtol=0, atol=1e-8)


def test_divergence_is_torchs() -> None:
    a, b = torch.randn(2, 5, 9), torch.randn(2, 5, 9)
    expected = torch.nn.functional.kl_div(
        a.log_softmax(-1).flatten(0, 1), b.log_softmax(-1).flatten(0, 1),
        log_target=True, reduction="batchmean",
    )  # fmt: skip
    torch.testing.assert_close(divergence(a, b), expected)
    assert float(divergence(a, a)) == 0
