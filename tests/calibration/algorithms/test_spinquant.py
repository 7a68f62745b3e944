# SPDX-License-Identifier: BSD-3-Clause
"""transform="spinquant": tests/calibration/test_learned_rotation.py has what it learns."""

import pytest
import torch

import blockscale as bs
from blockscale.calibration.algorithms.spinquant import SpinQuant
from tests.support.rotation_models import batches, decoder

RECIPE = bs.Recipe("int4:group16:fp32", input="int4:token:fp32", skip=["*head", "*embed*"])


def test_calibrate_learns_and_says_so() -> None:
    model, data = decoder("llama", torch.float32), batches()
    ledger = bs.calibrate(model, data, RECIPE, transform=SpinQuant(6, batches=2), progress=False)
    assert all("learned in 6 steps: loss" in entry.details for entry in ledger.quantized)
    with torch.no_grad():
        assert bool(model(**data[0]).logits.isfinite().all())


def test_arguments() -> None:
    for wrong in (SpinQuant, lambda steps: SpinQuant(1, rate=steps)):
        with pytest.raises(ValueError, match="spinquant: steps"):
            wrong(0)
    with pytest.raises(ValueError, match="only once"):
        SpinQuant(1).learned(None, None, None, iter(()))  # type: ignore[arg-type]
