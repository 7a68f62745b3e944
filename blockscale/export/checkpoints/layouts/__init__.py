# SPDX-License-Identifier: BSD-3-Clause
"""Quantized weights in other producers' safetensors files: one producer a file, found by its name.

What such a file defines is said in blockscale/export/checkpoints/layout.py.
"""
