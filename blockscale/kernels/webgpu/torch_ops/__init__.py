# SPDX-License-Identifier: BSD-3-Clause
"""Ops of torch on its device "webgpu": what runs each of them, one kind a file."""
