# SPDX-License-Identifier: BSD-3-Clause
"""Exact arithmetic under the contract: the bits of floats, sums of integers, random numbers."""
