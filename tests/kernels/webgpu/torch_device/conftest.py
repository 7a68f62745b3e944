# SPDX-License-Identifier: BSD-3-Clause
"""The device webgpu, opened as in the tests of its ops."""

from tests.kernels.webgpu.torch_ops.conftest import device as device
from tests.kernels.webgpu.torch_ops.conftest import opened as opened
