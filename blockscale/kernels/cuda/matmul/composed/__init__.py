# SPDX-License-Identifier: BSD-3-Clause
"""Products that are put together from others: of offsets, and of values that are no bfloat16."""
