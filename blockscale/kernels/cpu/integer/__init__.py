# SPDX-License-Identifier: BSD-3-Clause
"""Kernels of the integer ops: files named after what they compute."""

from blockscale.core import import_all

import_all(__name__, __path__)
