# SPDX-License-Identifier: BSD-3-Clause
"""SmoothQuant on one layer."""

from blockscale.calibration.algorithms.smoothquant import SmoothQuant
from blockscale.core.parse import parse
from tests.calibration.algorithms.transforms import stats_of

INT8, TOKEN = parse("int8_channel"), "int4:token:fp32"


def prepared(transform: SmoothQuant, weight, x, fmt="int8_channel", given=TOKEN):
    return transform.prepare(weight, parse(fmt), parse(given), stats_of(x), "layer")
