# SPDX-License-Identifier: BSD-3-Clause
"""torchao's affine primitives, with its signatures, defaults and bits (docs/torchao.md).

Written from what torchao 0.18.0 computes (torchao/quantization/quant_primitives.py) and tested
against it; torchao itself is never imported.
"""

from blockscale.compat.torchao.dtypes import MappingType as MappingType
from blockscale.compat.torchao.dtypes import ZeroPointDomain as ZeroPointDomain
from blockscale.compat.torchao.kernels import to_format as to_format
from blockscale.compat.torchao.quantize import choose_qparams_affine as choose_qparams_affine
from blockscale.compat.torchao.quantize import (
    choose_qparams_affine_with_min_max as choose_qparams_affine_with_min_max,
)
from blockscale.compat.torchao.quantize import dequantize_affine as dequantize_affine
from blockscale.compat.torchao.quantize import fake_quantize_affine as fake_quantize_affine
from blockscale.compat.torchao.quantize import quantize_affine as quantize_affine
