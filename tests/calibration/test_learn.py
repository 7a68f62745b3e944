# SPDX-License-Identifier: BSD-3-Clause
"""Whether blocks are walked or whole passes made."""

import pytest

import blockscale as bs
from blockscale.calibration.calibrate import calibrate
from blockscale.calibration.learn import Data, Methods
from tests.calibration.walk.networks import CALLS, GROUPS, Gram, Plain, decoder, ids


def test_where_one_pass_will_do_there_is_one() -> None:
    calibrate(decoder(4), ids(), bs.Recipe("int8", "int8"), progress=False)
    assert set(CALLS.values()) == {3}
    calibrate(decoder(4), ids(), GROUPS, weight=Gram(), sequential=False, progress=False)
    assert set(CALLS.values()) == {3}


def test_many_passes_are_told() -> None:
    ledger = calibrate(decoder(4), ids(), GROUPS, weight=Gram(), blocks=False, progress=False)
    assert ledger["table"].details == "weight by gram, no blocks: 9 passes over the whole model"
    assert set(CALLS.values()) == {27}


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"blocks='h\.\*' matches no module"):
        calibrate(decoder(2), ids(), GROUPS, weight=Gram(), blocks="h.*", progress=False)


def test_methods_are_read() -> None:
    plain = Plain()
    assert Methods.read("mse", plain, None).algorithm is plain
    assert Data([]).blocks is True
    with pytest.raises(ValueError, match="unknown weight algorithm 'nothing'"):
        Methods.read("mse", "nothing", None)
