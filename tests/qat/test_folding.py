# SPDX-License-Identifier: BSD-3-Clause
"""Which batch norm follows which convolution."""

import pytest
from torch import Tensor, nn

import blockscale as bs
from blockscale.qat.folding import NORMS
from tests.support.qat_models import Mixed, cnn

FINE = "int16:channel0:fp32"  # so fine that what remains is the arithmetic of folding


class Residual(nn.Module):
    """Two convolutions, of which one also feeds something else than its batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        return self.norm1(y) + y + self.norm2(self.conv2(x))


def prepared(model: nn.Module, fmt: str = FINE, **settings) -> nn.Module:
    return bs.prepare_qat(model, fmt, **settings)


def folded(model: nn.Module) -> list[str]:
    return [e.name for e in bs.qat.ledger(model) if "folded in" in e.reason]


def test_what_follows_what():
    assert folded(prepared(cnn())) == ["0", "3"]
    assert folded(prepared(Mixed())) == ["conv1", "conv2"]
    assert folded(prepared(Residual())) == ["conv2"]
    assert folded(prepared(cnn(), fuse=None)) == []
    assert folded(prepared(cnn(), fuse=[("3", "4")])) == ["3"]


def test_a_model_that_cannot_be_traced():
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = cnn()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x) if x.sum() > 0 else self.body(-x)

    with pytest.warns(UserWarning, match="torch.fx cannot trace the model"):
        model = prepared(Branching())
    assert folded(model) == ["body.0", "body.3"]
    model = Branching()
    norm = nn.BatchNorm2d(3)
    model.body = nn.Sequential(nn.Conv2d(3, 3, 1), norm, nn.Conv2d(3, 3, 1), norm)
    with pytest.warns(UserWarning, match="torch.fx cannot trace the model"):
        assert folded(prepared(model)) == []


def test_a_pair_that_is_no_neighbour():
    """Called once, but not one after the other; and called twice."""
    conv, norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
    assert folded(prepared(nn.Sequential(conv, nn.ReLU(), norm))) == []
    conv, norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
    assert folded(prepared(nn.Sequential(conv, norm, nn.ReLU(), conv, norm))) == []
    assert folded(prepared(nn.Sequential(nn.Conv2d(3, 3, 1), norm, nn.Conv2d(3, 3, 1), norm))) == []


@pytest.mark.parametrize("kind", NORMS, ids=lambda kind: kind.__name__)
def test_every_kind_of_convolution_with_the_norm_of_its_rank(kind: type[nn.Module]) -> None:
    norms = dict.fromkeys(NORMS.values())
    for norm in norms:
        model = nn.Sequential(kind(4, 6, 3), norm(6))
        assert folded(prepared(model)) == (["0"] if norm is NORMS[kind] else [])
    with pytest.raises(ValueError, match="is no pair that can be folded"):
        other = next(norm for norm in norms if norm is not NORMS[kind])
        prepared(nn.Sequential(kind(4, 6, 3), other(6)), fuse=[("0", "1")])


def test_what_cannot_be_folded_stays():
    model = cnn()
    model[1] = nn.BatchNorm2d(8, track_running_stats=False)
    model[3].register_forward_hook(lambda *_: None)
    assert folded(prepared(model)) == []
