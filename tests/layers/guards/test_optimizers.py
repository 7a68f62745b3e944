# SPDX-License-Identifier: BSD-3-Clause
"""An optimizer that steps what is not in the model any more gets one warning, all others none."""

import copy
import gc
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import blockscale as bs

X = torch.randn(4, 32)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 32))


def saved(tmp: Any) -> Any:
    other = model()
    bs.quantize_(other, "int8")
    bs.save(other, tmp / "m")
    return tmp / "m"


def converted(made: nn.Module) -> None:
    bs.prepare_qat(made, "int8")
    bs.convert(made)


WAYS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "bs.quantize_": lambda made, _: bs.quantize_(made, "int8"),
    "bs.calibrate": lambda made, _: bs.calibrate(made, [X], "int8", progress=False),
    "bs.load": lambda made, tmp: bs.load(made, saved(tmp)),
    "bs.convert": lambda made, _: converted(made),
}


@pytest.fixture(autouse=True)
def every_other_warning_is_an_error() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def steps(optimizer: torch.optim.Optimizer, made: nn.Module) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        made(X).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("called", WAYS)
def test_one_warning(called: str, tmp_path: Any) -> None:
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    adam = torch.optim.AdamW(made[2].parameters())
    WAYS[called](made, tmp_path)
    told = (
        f"blockscale: this SGD was made before {called}: 2 of its 4 parameters are not in the "
        "model any more ('0.weight' is one), and stepping them changes nothing. Make the optimizer "
        "afterwards, of model.parameters() or an adapter's; to train the weights themselves, "
        "bs.prepare_qat keeps them"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(told)}$") as seen:
        steps(optimizer, made)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    steps(optimizer, made)  # none any more
    with pytest.warns(UserWarning, match="this AdamW was made before .*: 1 of its 2 parameters"):
        steps(adam, made)
    steps(torch.optim.SGD(made.parameters(), lr=0.1), made)


def test_parameters_of_no_layer() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Parameter(torch.randn(32, 32))
            self.scale = nn.Parameter(torch.ones(32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.q * self.scale

    made = Own()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    bs.quantize_(made, "int8")
    with pytest.warns(UserWarning, match=r"1 of its 2 parameters are .*\('q' is one\)"):
        steps(optimizer, made)


def test_others_are_left_in_peace() -> None:
    made, other = model(), model()
    unrelated = torch.optim.SGD(other.parameters(), lr=0.1)
    after = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    prepared = model()
    early = torch.optim.SGD(prepared.parameters(), lr=0.1)
    bs.prepare_qat(prepared, "int8")
    kept = made[0]  # somebody goes on with the float layer
    float_layer = torch.optim.SGD(kept.parameters(), lr=0.1)
    bs.quantize_(made, "int8")
    steps(unrelated, other)
    after.step()
    steps(early, prepared)
    steps(float_layer, kept)


def test_what_raised_replaced_nothing() -> None:
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="does not run on the sample"):
        bs.quantize_(made, "int8", sample=(torch.ones(3, 5),))
    with pytest.raises(bs.SkippedError):
        bs.quantize_(made, bs.Recipe("int8", skip=["nothing"]), strict=True)
    steps(optimizer, made)


def test_dead_weights_are_not_kept_alive() -> None:
    from blockscale.layers.guards import optimizers

    gc.collect()
    before = len(optimizers._replaced)
    made = model()
    bs.quantize_(made, "int8")
    gc.collect()
    assert len(optimizers._replaced) == before


def test_a_copy_is_another_model() -> None:
    made = model()
    other = copy.deepcopy(made)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    bs.quantize_(made, "int8")
    steps(optimizer, other)


@pytest.mark.slow
def test_a_compiled_step_traces_nothing_of_it() -> None:
    made = model()
    bs.quantize_(made, "int8")
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = torch.compile(optimizer.step, backend="eager")  # torch's own step breaks the graph
        made(X).sum().backward()
        before = made[0].bias.detach().clone()
        step()
    assert not torch.equal(made[0].bias, before)
