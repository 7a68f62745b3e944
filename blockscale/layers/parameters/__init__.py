# SPDX-License-Identifier: BSD-3-Clause
"""Quantized parameters that belong to no layer."""
