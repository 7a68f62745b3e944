# SPDX-License-Identifier: BSD-3-Clause
"""A model's whole directory, quantized into another one that appears whole or not at all."""
