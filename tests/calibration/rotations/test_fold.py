# SPDX-License-Identifier: BSD-3-Clause
"""Parameters of a rotated model, and back."""

import pytest
import torch

from blockscale.calibration.rotations.fold import turned
from blockscale.calibration.rotations.matrices import orthogonal
from blockscale.calibration.rotations.rotated import put
from blockscale.calibration.rotations.stream import UnrotatableError, stream_of
from tests.support.rotation_models import batches, decoder


def test_the_inverse_undoes_it() -> None:
    model = decoder("mistral")
    stream = stream_of(model, batches()[0])
    r, heads = orthogonal(48, 0), {12: orthogonal(12, 1)}
    gain = model.model.norm.weight.detach().clone()
    head, writer = model.lm_head.weight.clone(), model.model.layers[0].mlp.down_proj.weight.clone()
    put(model, turned(model, stream, r, heads))
    expected = (head * gain) @ r
    torch.testing.assert_close(model.lm_head.weight.detach(), expected.detach())
    put(model, turned(model, stream, r.T, {12: heads[12].T}))
    torch.testing.assert_close(model.lm_head.weight / gain, head)
    torch.testing.assert_close(model.model.layers[0].mlp.down_proj.weight, writer)
    assert bool((model.model.norm.weight == 1).all())


def test_a_bias_without_a_gain_is_refused() -> None:
    model = decoder("gpt2")
    with torch.no_grad():
        model.transformer.ln_f.weight[3] = 0
    stream = stream_of(model, batches()[0])
    with pytest.raises(UnrotatableError, match="gain is 0"):
        list(turned(model, stream, orthogonal(48, 0), {}))
