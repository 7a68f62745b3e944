# SPDX-License-Identifier: BSD-3-Clause
"""GGUF files: their head, their metadata from a model's configuration, their tokenizer."""
