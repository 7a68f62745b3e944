# SPDX-License-Identifier: BSD-3-Clause
"""A model's repeated blocks, one after the other, each with what goes into it at hand."""
