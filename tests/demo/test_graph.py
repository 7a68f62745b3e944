# SPDX-License-Identifier: BSD-3-Clause
"""The steps of the demonstration, on the model that it shows: what the graph flow promises."""

import pytest

from blockscale.demo import minilm
from blockscale.demo.graph import RECIPES, steps
from blockscale.demo.minilm import SENTENCES

pytestmark = pytest.mark.slow  # half a minute, and `make demo` prints it

COSINES = {"int8": 0.99, "mxfp8": 0.991}  # smallest, to float, on eight sentences


@pytest.fixture(scope="module")
def flow():
    path = minilm.directory()
    return list(steps(minilm.build(path), minilm.tokenize(path, SENTENCES[:8])))


def test_every_step_of_every_recipe(flow):
    names = ["prepare, calibrate", "convert", "fuse"]
    for recipe in RECIPES:
        assert [s.name for s in flow if s.recipe == recipe][:3] == names
        assert [s.name for s in flow if s.recipe == recipe][3].startswith("lower to ")
    assert flow[0].name == "export"


def test_what_a_program_keeps(flow):
    measured = [step for step in flow if step.cosine is not None]
    assert len(measured) == 3 * len(RECIPES)
    for step in measured:
        assert step.cosine >= COSINES[step.recipe], step
        assert (step.program_bytes is None) == (step.name == "fuse"), step
        assert (step.program_bytes or 0) <= 28e6, step
    lowered = [step for step in measured if step.to_modules is not None]
    assert len(lowered) == len(RECIPES) and all(step.to_modules > 0 for step in lowered)
