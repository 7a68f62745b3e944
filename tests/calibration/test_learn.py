# SPDX-License-Identifier: BSD-3-Clause
"""Whether blocks are walked or whole passes made."""

import pytest
import torch

import blockscale as bs
from blockscale.calibration.calibrate import calibrate
from blockscale.calibration.learn import Data, Methods, read_methods
from tests.calibration.walk.networks import CALLS, GROUPS, Gram, Plain, decoder, ids


@pytest.mark.slow
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


def test_auto_is_what_the_closest_preset_does_and_says_so() -> None:
    recipe, methods = read_methods(bs.Recipe("int3:group32:fp16"), None, "auto", None)
    assert (methods.algorithm.name, methods.transform.name) == ("gptq", "awq")
    assert str(recipe.calibration) == "transform awq, weight gptq"
    other = read_methods(bs.Recipe("int4:group32:fp16"), None, "auto", "smoothquant")[0]
    assert str(other.calibration) == "transform smoothquant, weight gptq"  # what is named holds
    own = bs.Recipe("int4:group32:fp16", calibration={"weight": "hqq"})
    assert read_methods(own, None, "auto", None)[0] == own
    for plain in (bs.Recipe("int8_channel"), bs.Recipe("profile:gguf.q4_0")):
        recipe, methods = read_methods(plain, None, "auto", None)
        assert (recipe, methods.algorithm, methods.transform) == (plain, None, None)


@pytest.mark.slow
def test_auto_gives_the_bits_of_what_it_stands_for() -> None:
    one, other = decoder(2), decoder(2)
    calibrate(one, ids(), "int4:group4:fp16", weight="auto", progress=False)
    calibrate(other, ids(), "int4:group4:fp16", weight="gptq", transform="awq", progress=False)
    for left, right in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(left, right)
