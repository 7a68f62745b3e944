# SPDX-License-Identifier: BSD-3-Clause
"""Hypothesis: blocks along any dimensions, with tensors of every rank that they fit."""

from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

from blockscale.core.parse import parse
from blockscale.kernels.cuda.spec import known
from tests.support.strategies import spellings, tensors

SHAPES = st.one_of(
    st.lists(st.integers(1, 9), min_size=2, max_size=2),
    st.lists(st.integers(1, 6), min_size=3, max_size=3),
    st.lists(st.integers(1, 4), min_size=4, max_size=5),
    st.lists(st.integers(0, 3), min_size=1, max_size=5),
).map(tuple)
SIZE = st.one_of(st.integers(1, 4), st.sampled_from(["*", "8"])).map(str)


@st.composite
def boxes(draw) -> tuple[str, Tensor, int, int]:
    """A spelling whose block has a size for some last dimensions of a tensor, the tensor, a seed
    and the index of its first element."""
    shape = draw(SHAPES)
    other = draw(spellings(len(shape)))
    element, _, rest = other.split(":", 2)
    sizes = draw(st.lists(SIZE, min_size=min(2, len(shape)), max_size=len(shape)))
    fmt = parse(f"{element}:block{'x'.join(sizes)}:{rest}")
    assume(known((fmt,), ()))
    x = draw(tensors(other, shape))
    return fmt.spelling, x, draw(st.sampled_from([0, -1, 2**63 - 1])), draw(st.sampled_from([0, 3]))
