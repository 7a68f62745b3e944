# SPDX-License-Identifier: BSD-3-Clause
"""The host's side: adapter, device, memory, shaders and their launches. Only here is wgpu known."""
