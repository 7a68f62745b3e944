# SPDX-License-Identifier: BSD-3-Clause
"""Our own files: what a quantized model is saved to and loaded from (docs/files.md).

One format, of this package alone: safetensors files with blockscale's metadata, folders of them,
and what reads, writes, inspects and compares those. Other people's formats (ONNX, ExecuTorch,
compressed-tensors, GGUF, …) belong in the room `export`, one file each; nothing here knows them.
"""
