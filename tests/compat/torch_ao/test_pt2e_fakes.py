# SPDX-License-Identifier: BSD-3-Clause
"""torchao's fake quantizers with power-of-two scales."""

import warnings

import pytest
import torch

from blockscale.compat.torch_ao import power_of_2, pt2e_fakes
from blockscale.compat.torch_ao.pt2e_fakes import FAKES
from tests.compat.torch_ao.batches import batches

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchao.quantization.pt2e import fake_quantize, observer


def powers(scale: torch.Tensor) -> bool:
    return bool((scale.frexp().mantissa == 0.5).all())


@pytest.mark.parametrize("kind", FAKES)
def test_fake_quantizers(kind: type) -> None:
    assert issubclass(FAKES[kind], kind)
    assert FAKES[kind] is getattr(pt2e_fakes, kind.__name__)  # prepare_pt2e looks at names
    theirs, plain, ours = kind(), FAKES[kind](), power_of_2(kind)()
    for x in batches():
        assert torch.equal(plain(x), theirs(x))
        y = ours(x)
        scale, zero = ours.activation_post_process.calculate_qparams()
        assert powers(scale)
        assert torch.equal(y, ((x / scale).round() + zero).clamp(0, 255).sub(zero) * scale)


class Own(observer.MinMaxObserver):
    """A user's own of torchao's."""


@pytest.mark.parametrize("kind", [observer.MinMaxObserver, Own])
def test_they_take_torchao_s_observers_and_a_user_s(kind: type) -> None:
    fake = pt2e_fakes.FakeQuantize(observer=kind, power_of_2_scale=True)
    fake(batches()[0])
    assert isinstance(fake.activation_post_process, kind)
    assert powers(fake.scale)
    assert type(pt2e_fakes.FakeQuantize(observer=kind).activation_post_process) is kind


def test_what_has_rules_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="only the observers and fake quantizers of torch"):
        power_of_2(fake_quantize.AffineFakeQuantize)
