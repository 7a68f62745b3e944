# SPDX-License-Identifier: BSD-3-Clause
"""How good a quantized model is at its work: losses, divergences, agreement, errors of tasks."""
