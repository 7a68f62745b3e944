# SPDX-License-Identifier: BSD-3-Clause
"""The commands: one file each, which defines a function of the file's own name."""
