# SPDX-License-Identifier: BSD-3-Clause
"""Stand-ins: shapes without memory, and ties of what is read."""

import torch
from torch import nn

from blockscale.integrations.stand_in import TieMarks, stand_in, standing_in


def test_a_shape_of_one_number() -> None:
    parameter = stand_in((300, 200), torch.bfloat16, "cpu", 3.0)
    assert parameter.shape == (300, 200)
    assert parameter.untyped_storage().nbytes() == 2
    assert bool((parameter == 3).all())
    assert isinstance(parameter, nn.Parameter)
    assert stand_in((), torch.float32, "cpu").shape == ()


def test_marks_are_the_same_where_ties_hold_the_same() -> None:
    marks = TieMarks({"head": "table"})
    codes = torch.tensor([1, 2], dtype=torch.uint8)
    assert marks.of("table", {"codes": codes}) == 0
    assert marks.of("head", {"codes": codes.clone()}) == 0
    assert marks.of("head", {"codes": codes + 1}) == 1
    assert marks.of("head", {"codes": codes, "scale": codes}) == 2
    assert marks.of("head", {"codes": codes.to(torch.int8)}) == 3
    assert marks.of("other", {"codes": codes + 1}) == 0  # tied to nothing


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(4, 3), nn.Linear(3, 4)
        self.all_tied_weights_keys = {"head.weight": "table.weight"}


def test_a_model_on_meta_is_tied_for_a_while() -> None:
    with torch.device("meta"):
        model = Tied()
    before = dict(model.named_parameters())
    with standing_in(model):
        assert model.head.weight is model.table.weight
        assert {each.device.type for each in model.parameters()} == {"cpu"}
    after = dict(model.named_parameters())
    assert all(after[name] is before[name] for name in before)
    assert len(after) == 3
