# SPDX-License-Identifier: BSD-3-Clause
"""What a number means: formats and their reference. No device, no files."""
