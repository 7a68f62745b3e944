# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with tests/core/test_against_rationals.py: `cases`."""

from hypothesis import strategies as st
from torch import Tensor

from tests.support.strategies import SHAPES, spellings, tensors


@st.composite
def cases(draw) -> tuple[str, Tensor, int, int]:
    """A spelling, a tensor that it fits, a seed and the index of the tensor's first element."""
    shape = draw(SHAPES)
    spelling = draw(spellings(len(shape)))
    seed = draw(st.sampled_from([0, 1, -1, 2**32, 2**63 - 1, -(2**63), 0x243F6A8885A308D3]))
    return spelling, draw(tensors(spelling, shape)), seed, draw(st.sampled_from([0, 3, 2**34 - 2]))
