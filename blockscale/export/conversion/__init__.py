# SPDX-License-Identifier: BSD-3-Clause
"""From one checkpoint to another: what stays the same to the bit, what does not, and the proof."""
