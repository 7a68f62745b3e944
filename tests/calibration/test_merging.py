# SPDX-License-Identifier: BSD-3-Clause
"""Buffers that merge know what they can merge with."""

import pytest

import blockscale as bs
from tests.calibration.observers.seen import draw, seeing


def test_states_that_do_not_fit():
    state = seeing("mse", "int8", draw(4, 4)).state_dict()
    with pytest.raises(
        RuntimeError,
        match=(
            r"has the format int4.*the state was saved with int8:tensor:fp32: build the layer "
            r"with the same format"
        ),
    ):
        bs.observers.make("mse", "int4:tensor:fp32").load_state_dict(state)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        bs.observers.make("min_max", "int8").load_state_dict(state)
    state["counts"] = state["counts"][..., :100]
    with pytest.raises(RuntimeError, match="size mismatch for counts"):
        bs.observers.make("mse", "int8").load_state_dict(state)


def test_what_cannot_merge():
    int8 = bs.observers.make("mse", "int8")
    for other in (bs.observers.make("min_max", "int8"), bs.observers.make("mse", "int4"), 3):
        with pytest.raises(
            ValueError,
            match=r"cannot merge statistics of different observers: mse \(int8:tensor:fp32\)",
        ):
            int8.merge_(other)
    a, b = (seeing("min_max", "int8:channel-1:fp32", draw(2, n)) for n in (3, 4))
    with pytest.raises(ValueError, match=r"had shape \(1, 3\) and now has \(1, 4\)"):
        a.merge_(b)
    assert int(a.samples) == 6
