"""Why a layer cannot be quantized."""

import warnings

import pytest
from torch import nn

import blockscale as bs


def test_lazy_modules_are_skipped_as_such() -> None:
    for lazy in (nn.LazyLinear(3), nn.LazyConv2d(3, 1)):
        with pytest.warns(UserWarning, match=r"1: skipped, .*(lazy|no data|initialized)"):
            bs.quantize_(nn.Sequential(nn.Linear(4, 4), lazy), "int8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ledger = bs.quantize_(nn.Sequential(nn.Linear(4, 4), nn.LazyBatchNorm1d()), "int8")
    assert ledger["0"].status == "quantized"
