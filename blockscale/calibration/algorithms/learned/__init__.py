# SPDX-License-Identifier: BSD-3-Clause
"""Rounding that is learned from what a block gives: the pieces of `signround`, one idea a file."""
