# SPDX-License-Identifier: BSD-3-Clause
"""Calibration block by block: not the whole model is run several times, but each block."""
