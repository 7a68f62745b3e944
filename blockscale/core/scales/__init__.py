# SPDX-License-Identifier: BSD-3-Clause
"""Scales and offsets that are quantized themselves: levels below the first one."""
