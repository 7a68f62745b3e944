# SPDX-License-Identifier: BSD-3-Clause
"""Formats that the CPU's kernels know only restated."""

from blockscale.kernels.cpu.prepack import fingerprint
from blockscale.kernels.restated_ops import register

OPS = register("cpu", fingerprint)
