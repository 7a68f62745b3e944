# SPDX-License-Identifier: BSD-3-Clause
"""Which layer gets which format: errors and times that are measured, and a choice under budgets."""
