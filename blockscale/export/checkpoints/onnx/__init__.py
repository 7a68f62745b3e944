# SPDX-License-Identifier: BSD-3-Clause
"""ONNX: onnxruntime's and ONNX's own quantized weights, and those of our exporter."""

from blockscale.export.checkpoints.onnx import reading

reader, recognize = reading.ONNX, reading.recognize
