# SPDX-License-Identifier: BSD-3-Clause
"""Tensors a slab of rows at a time, so that memory does not depend on their size."""
