# SPDX-License-Identifier: BSD-3-Clause
"""torchao's safetensors files (0.14 to 0.18: prototype/safetensors, quantization/quantize_)."""

from blockscale.export.checkpoints.layouts.torchao import classes

PRODUCER, METHODS, find = classes.PRODUCER, classes.METHODS, classes.find
