# SPDX-License-Identifier: BSD-3-Clause
"""Encoders of producers whose rules are no knobs: searches, offsets, scales of integers.

Each is a frozen value that is called with numbers and a format, as blockscale.core.profiles.knobs
says; one file for each family of rules. All is plain PyTorch over all blocks at once.
"""
