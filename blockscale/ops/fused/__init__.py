# SPDX-License-Identifier: BSD-3-Clause
"""Ops on codes and floats: dequantize, compute, quantize as one op. One file a family of ops."""

from blockscale.core import import_all
from blockscale.ops.fused.define import FUSED as FUSED
from blockscale.ops.fused.define import Fused as Fused
from blockscale.ops.fused.define import fused as fused
from blockscale.ops.fused.matching import Match as Match
from blockscale.ops.fused.matching import match as match

import_all(__name__, __path__)
