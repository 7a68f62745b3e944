# SPDX-License-Identifier: BSD-3-Clause
"""What ops that only move elements make of codes, and of the scales beside them."""
