# SPDX-License-Identifier: BSD-3-Clause
"""Quantized tables of which bags of rows are summed."""
