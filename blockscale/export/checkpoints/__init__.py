# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoints of other producers, and ours: a file or folder for each that defines `recognize` and
`reader`."""
