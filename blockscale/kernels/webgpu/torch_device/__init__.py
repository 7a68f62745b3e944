# SPDX-License-Identifier: BSD-3-Clause
"""torch's device "webgpu": tensors with memory on the GPU, and the way ops find what runs them."""
