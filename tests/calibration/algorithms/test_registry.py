# SPDX-License-Identifier: BSD-3-Clause
"""Weight algorithms and transforms are found by name, name and setting, or given."""

import pytest

from blockscale.calibration import algorithms
from blockscale.calibration.algorithms.gptq import GPTQ
from blockscale.calibration.algorithms.hqq import HQQ
from blockscale.calibration.algorithms.mse import MSE


def test_by_name() -> None:
    assert algorithms.weights("absmax") is None and algorithms.weights(None) is None
    assert algorithms.transforms(None) is None
    assert isinstance(algorithms.weights("mse"), MSE)
    assert isinstance(algorithms.weights("gptq"), GPTQ)
    assert isinstance(algorithms.weights("hqq"), HQQ)


def test_by_setting() -> None:
    found = algorithms.weights("hqq:0.5")
    assert isinstance(found, HQQ) and found.p == 0.5
    found = algorithms.weights("gptq:absmax")
    assert isinstance(found, GPTQ) and found.scales == "absmax"
    found = algorithms.weights("mse:gram")
    assert isinstance(found, MSE) and found.needs_gram


def test_an_instance_is_taken_as_it_is() -> None:
    given = GPTQ(damping=0.1)
    assert algorithms.weights(given) is given


def test_what_there_is_not() -> None:
    words = r"unknown weight algorithm 'best'; choose from absmax, .*gptq, .*hqq"
    with pytest.raises(ValueError, match=words):
        algorithms.weights("best")
    assert {"gptq", "signround"} < {*algorithms.weight_names()}
    names = algorithms.weight_names(blocks=False)
    assert {*algorithms.weight_names()} - {*names} == {"signround"}
    with pytest.raises(ValueError, match=f"choose from {', '.join(['absmax', *names])}$"):
        algorithms.weights("best", blocks=False)
    with pytest.raises(ValueError, match="unknown transform 'gptq'; choose from "):
        algorithms.transforms("gptq")
    with pytest.raises(ValueError, match="is not a weight algorithm: pass an instance, or one"):
        algorithms.weights(GPTQ)  # the class
    with pytest.raises(ValueError, match="is not a weight algorithm"):
        algorithms.weights(4)
    with pytest.raises(ValueError, match="weighting must be 'none' or 'gram', got 'diagonal'"):
        algorithms.weights("mse:diagonal")
