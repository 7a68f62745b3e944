# SPDX-License-Identifier: BSD-3-Clause
"""What is held is given back at the end of a `with`, also of one that an error ends."""

import pytest

from blockscale.core.work.closing import Closing


class Held(Closing):
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_a_block_ends_with_close() -> None:
    with Held() as held:
        assert held.closed == 0
    assert held.closed == 1


def test_errors_go_on() -> None:
    held = Held()
    with pytest.raises(KeyError), held:
        raise KeyError("x")
    assert held.closed == 1


def test_what_cannot_be_closed_is_none() -> None:
    with pytest.raises(TypeError, match=r"abstract method '?close"):
        type("Open", (Closing,), {})()
