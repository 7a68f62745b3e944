# SPDX-License-Identifier: BSD-3-Clause
"""From a float model and some data to a quantized one: observers, calibration, algorithms."""
