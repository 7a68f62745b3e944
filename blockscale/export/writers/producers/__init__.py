# SPDX-License-Identifier: BSD-3-Clause
"""Producers whose files are written, one a file of this folder; each defines `writer`, a Writer."""
