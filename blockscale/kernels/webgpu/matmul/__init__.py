# SPDX-License-Identifier: BSD-3-Clause
"""Products on the GPU: floats with quantized weights or floats, few rows or many."""
