# SPDX-License-Identifier: BSD-3-Clause
"""A fused graph as one of integers: what values mean, rules for each op, the audit."""
