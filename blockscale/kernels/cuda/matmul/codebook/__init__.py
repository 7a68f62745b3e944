# SPDX-License-Identifier: BSD-3-Clause
"""Weights whose elements are tables: as sums of tables of bfloat16, which PTX looks codes up in."""
