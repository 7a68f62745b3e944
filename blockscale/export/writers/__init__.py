# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoints as other producers write them, and ours: a file of producers/ for each."""
