"""torchao's safetensors files (0.14 to 0.18: prototype/safetensors, quantization/quantize_)."""

from blockscale.export.checkpoints.layouts.torchao import finding

PRODUCER, METHODS, find = finding.PRODUCER, finding.METHODS, finding.find
