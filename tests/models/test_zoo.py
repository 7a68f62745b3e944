# SPDX-License-Identifier: BSD-3-Clause
"""Architectures of others: each is quantized, runs, is saved, loaded and trained, as docs/models.md
says. A few of the most different ones at every run, all of them among the slow tests."""

import pytest

from tests.models import table
from tests.models.cells import CELLS, row
from tests.models.registry import models
from tests.support.some import crossed

RECORDED = table.read()
WITHOUT_COMPILE = tuple(name for name in CELLS if name != "compile")
FEW = (
    "mixtral",  # experts in stacks
    "mamba",  # a convolution's kernel read by its parent
    "wav2vec2",  # a convolution whose weight is normed
    "nn_attention",  # torch's own attention
)
COMPILED = ("bert", "llama", "mixtral", "mamba", "t5", "vit", "swin", "nn_encoder")


def check(name: str, cells: tuple[str, ...]) -> None:
    model = models()[name]
    if model.missing:
        pytest.skip(model.missing)
    recorded = {cell: tuple(RECORDED[name]["cells"][cell]) for cell in cells}
    found = {cell: tuple(each) for cell, each in row(model, cells).items()}
    ok = {cell: each[0] for cell, each in found.items()}
    expected = {cell: each[0] for cell, each in recorded.items()}
    told = {cell: each for cell, each in found.items() if each[0]}
    again = f"run: python -m tests.models.table {name} && make docs"
    assert ok == expected, f"{found}\n{again}"
    assert told == {cell: recorded[cell] for cell in told}, again


def test_all_of_the_zoo_is_recorded():
    assert list(RECORDED) == list(models()), "run: python -m tests.models.table && make docs"
    assert all(list(each["cells"]) == list(CELLS) for each in RECORDED.values())


@pytest.mark.slow
@pytest.mark.some(5)
@pytest.mark.parametrize("name", crossed(2, FEW))
def test_few(name):
    check(name, WITHOUT_COMPILE)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(models()) - set(FEW)))
def test_all(name):
    check(name, WITHOUT_COMPILE)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name):
    check(name, ("compile",))
