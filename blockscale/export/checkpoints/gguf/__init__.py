# SPDX-License-Identifier: BSD-3-Clause
"""GGUF: llama.cpp, Ollama, LM Studio and whoever builds on them."""

from blockscale.export.checkpoints.gguf import reading

reader, recognize = reading.GGUF, reading.recognize
