# SPDX-License-Identifier: BSD-3-Clause
"""Kernels of the fused ops: files named after what they compute; `rows` is what they share."""

from blockscale.core.discover import import_all

import_all(__name__, __path__)
