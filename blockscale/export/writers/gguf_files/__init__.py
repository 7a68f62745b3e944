"""GGUF files: their head, their metadata from a model's configuration, their tokenizer."""
