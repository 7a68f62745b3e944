# SPDX-License-Identifier: BSD-3-Clause
"""compressed-tensors: llm-compressor, vLLM, RedHat AI (0.20.0: compressors/, quantization/)."""

from blockscale.export.checkpoints.layouts.compressed_tensors import finding

PRODUCER, METHODS, find = finding.PRODUCER, finding.METHODS, finding.find
