# SPDX-License-Identifier: BSD-3-Clause
"""Tensors in 3-D textures, four elements of a row a texel, and the primitives on them."""

from blockscale.kernels.webgpu.textures.primitives import QuantizedTexture as QuantizedTexture
from blockscale.kernels.webgpu.textures.primitives import choose_qparams as choose_qparams
from blockscale.kernels.webgpu.textures.primitives import dequantize as dequantize
from blockscale.kernels.webgpu.textures.primitives import fake_quantize as fake_quantize
from blockscale.kernels.webgpu.textures.primitives import quantize as quantize
from blockscale.kernels.webgpu.textures.primitives import quantized as quantized
from blockscale.kernels.webgpu.textures.storage import Texture as Texture
from blockscale.kernels.webgpu.textures.storage import texture as texture
