# SPDX-License-Identifier: BSD-3-Clause
"""After the walk: all blocks are learned together, by what the model gives; and what it refuses."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.algorithms.signround import SignRound
from blockscale.calibration.walk.options import Options
from blockscale.calibration.walk.whole import learns_whole
from tests.calibration.algorithms.learned.tasks import Net


class Chain(nn.Module):
    """Two blocks and a head, whose output says of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([First(), First()]), nn.Linear(16, 24)

    def forward(self, x: Tensor) -> SimpleNamespace:
        for block in self.blocks:
            x = block(x)
        return SimpleNamespace(logits=self.head(x))


class First(Net):
    """Net without what is no tensor."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return super().forward(x, mask)[0]


def divergence_of(model: nn.Module, other: nn.Module, batches: list[Tensor]) -> float:
    with torch.no_grad():
        pairs = [
            (other(x).logits.log_softmax(-1), model(x).logits.log_softmax(-1)) for x in batches
        ]
    return sum(float(nn.functional.kl_div(*p, reduction="sum", log_target=True)) for p in pairs)


def test_the_whole_model_is_learned_by_what_its_logits_say() -> None:
    torch.manual_seed(0)
    model = Chain().eval()
    batches = [torch.randn(2, 12, 16) for _ in range(4)]
    errors, notes = [], []
    for whole in (0, 40, 40):
        other = copy.deepcopy(model)
        algorithm = SignRound(10, positions=48, whole=whole, inside=0.3)
        ledger = bs.calibrate(
            other, batches, bs.Recipe("int3:group8:fp32", skip=["head"]), weight=algorithm,
            progress=False,
        )  # fmt: skip
        errors.append(divergence_of(model, other, batches))
        notes.append("and by the whole model" in ledger["blocks.0.up"].details)
    assert errors[1] < 0.8 * errors[0]
    assert errors[1] == errors[2]  # it repeats itself
    assert notes == [False, True, True]
    assert all(not p.grad_fn for p in model.parameters())


def test_weights_from_disk_are_refused() -> None:
    options = Options(False, 1.0, None, settler=object())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="whole needs the whole model at once: no source="):
        learns_whole(SignRound(2, whole=2), options)
    assert not learns_whole(SignRound(2), options)
