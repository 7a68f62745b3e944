# SPDX-License-Identifier: BSD-3-Clause
"""Experts: parameters that are stacks of matrices, one for each expert of a layer."""
