# SPDX-License-Identifier: BSD-3-Clause
"""Public docstrings have a summary, all parameters, and what is raised."""

import pytest

from tests.support.public_docs import MODULES, lacks, public

# Modules that import torchao, transformers, peft or diffusers: seconds.
OTHERS = ("blockscale.compat", "blockscale.integrations", "blockscale.export")


@pytest.mark.parametrize(
    "module",
    [pytest.param(m, marks=[pytest.mark.slow] * m.startswith(OTHERS)) for m in MODULES],
)
def test_nothing_is_left_out(module: str):
    found = {path: parts for path, value in public(module) if (parts := lacks(path, value))}
    assert found == {}


def test_what_is_looked_at():
    paths = {path for module in ("blockscale", "blockscale.graph") for path, _ in public(module)}
    assert len(paths) > 120
    assert {"blockscale.quantize", "blockscale.QTensor.to", "blockscale.graph.prepare"} <= paths


def test_what_is_missed():
    def half(x: int, rounded: bool) -> int:
        """Half of x."""
        if x < 0:
            raise ValueError(x)
        return x // 2

    def none() -> None: ...

    def open_end(x: int) -> None:
        """What x"""

    assert lacks("half", half) == ["the parameter rounded", "Raises"]
    assert lacks("none", none) == ["a docstring"]
    assert lacks("open_end", open_end) == ["a summary that ends"]
    assert lacks("blockscale.RecipeConfig.half", half) == []
