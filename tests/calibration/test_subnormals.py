# SPDX-License-Identifier: BSD-3-Clause
"""Calibration gives the same bits where a library has told threads to take subnormals for 0."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _flush() -> Iterator[None]:
    yield
    torch.set_flush_denormal(False)


def tiny(*shape: int) -> Tensor:
    """Numbers around the smallest normal one: some are subnormal, and so are most differences."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))) * 2.0**-127


def model() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Linear(32, 16, bias=False))
    made[1].weight.data = tiny(16, 32)
    return made.eval()


def twice(run: Any) -> list[Any]:
    """What a run gives with subnormals, and where threads flush them; the switch stays."""
    found = []
    for flushes in (False, True):
        torch.set_flush_denormal(flushes)
        found.append(run())
        assert (torch.ones(1) * 2.0**-140).any().item() is not flushes
    torch.set_flush_denormal(False)
    return found


SLOW = {"adaptive", "entropy", "mse"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in bs.observers.names()],
)
def test_observers(name: str) -> None:
    """Alone, as anybody may use them."""
    fmt = "binary:tensor:fp32" if name == "mean" else "int8:tensor:fp32:asym"
    x = tiny(64, 16)

    def run() -> list[Tensor]:
        observer = bs.observers.make(name, fmt)
        for _ in range(2):
            observer.observe(x)
        return [*observer.buffers(), *observer.range()[:2], observer.qparams().scale]

    kept, flushed = twice(run)
    assert any(each.dtype == torch.float32 and bool(each.any()) for each in kept)
    for one, other in zip(kept, flushed, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.parametrize(
    "options",
    [
        {"weight": "mse"},
        pytest.param({"weight": "gptq"}, marks=pytest.mark.slow),
        pytest.param({"weight": "hqq"}, marks=pytest.mark.slow),
        pytest.param({"weight": "search"}, marks=pytest.mark.slow),
        pytest.param({"transform": "awq"}, marks=pytest.mark.slow),
        pytest.param({"transform": "smoothquant"}, marks=pytest.mark.slow),
    ],
    ids=lambda options: "-".join(options.values()),
)
def test_algorithms(options: dict[str, str]) -> None:
    recipe = bs.Recipe("int4:group16:fp32", input="int8:tensor:fp32")
    plain, batches = model(), [tiny(8, 32) * 4, tiny(8, 32)]

    def run() -> dict[str, Tensor]:
        made = copy.deepcopy(plain)
        bs.calibrate(made, batches, recipe, progress=False, **options)
        return made.state_dict()

    kept, flushed = twice(run)
    assert kept.keys() == flushed.keys()
    for name, each in kept.items():
        assert torch.equal(each, flushed[name]), name
