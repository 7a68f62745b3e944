# SPDX-License-Identifier: BSD-3-Clause
"""What is chosen for layers comes back from tensors and plain data as it was."""

import copy
from typing import Any

import torch
from torch import Tensor

import blockscale as bs
from blockscale.calibration.choose import share
from blockscale.calibration.places import from_message, packed, share_codes, to_message, unpack
from blockscale.calibration.ranks import ALONE
from blockscale.calibration.session import Session
from blockscale.layers.apply import plans_for
from blockscale.layers.before import Scale
from blockscale.layers.plan import Plan
from blockscale.layers.store import QInput
from blockscale.ops.tensor import QTensor
from tests.calibration.walk.networks import decoder


def session_of(recipe: bs.Recipe) -> tuple[Session, list[Plan]]:
    model = decoder(1)
    plans = plans_for(model, recipe)
    session = Session(model, plans, None, strict=False, by_observers=True)
    return session, [plan for plan in plans if isinstance(plan, Plan)]


def test_all_that_is_chosen_comes_back() -> None:
    for recipe in (
        bs.Recipe("nvfp4", "e2m1:group16:e4m3/given"),
        bs.Recipe("int4", "int8:tensor:fp32"),
    ):
        session, plans = session_of(recipe)
        plan = next(plan for plan in plans if plan.name.endswith("attention.q"))
        place = session.places[plan.name]
        place.weight = bs.quantize(plan.parameter.detach(), plan.format)
        place.before = Scale(torch.rand(16) + 1)
        place.input = QInput(plan.scheme.input)  # type: ignore[arg-type]
        place.input.set_scale(torch.tensor(0.5))
        session.details[plan.name] = ["a", "b"]
        session.notes[plan.name] = ["odd: \u00fc"]
        chosen, data = copy.deepcopy(place), to_message(*packed(plan, session))
        place.weight = place.before = place.input = None
        session.details[plan.name] = session.notes[plan.name] = []
        unpack(plan, session, *from_message(data))
        assert session.details[plan.name] == ["a", "b"]
        assert session.notes[plan.name] == ["odd: \u00fc"]
        assert same(place.weight, chosen.weight)
        assert place.input is not None and chosen.input is not None and place.input.static
        own, others = place.input.state_dict(), chosen.input.state_dict()
        assert own.keys() == others.keys()
        for key, value in own.items():
            assert not isinstance(value, Tensor) or torch.equal(value, others[key])
        assert torch.equal(place.before(torch.ones(16)), chosen.before(torch.ones(16)))  # type: ignore[misc]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, QTensor):
        return a.size == b.size and same((a.packed, *a.qparams), (b.packed, *b.qparams))
    pairs = zip(a, b, strict=True)
    return all((x is None and y is None) or torch.equal(x, y) for x, y in pairs)


def test_alone_nothing_is_packed() -> None:
    session, plans = session_of(bs.Recipe("int4"))
    told: list[str] = []
    share(session, plans, lambda: told.append("chosen"))
    q = bs.quantize(torch.ones(2, 32), "int4:group32:fp32")
    assert share_codes(ALONE, plans, lambda: {"a": (q, ["note"])})["a"][0] is q
    assert told == ["chosen"]
