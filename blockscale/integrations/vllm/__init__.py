# SPDX-License-Identifier: BSD-3-Clause
"""vLLM serves our directories as they are: weights stay packed, and our ops multiply by them.

    served.py   what a server's layers get of a directory, read by name; knows no server
    experts.py  tokens through their experts; knows no server
    method.py   the classes that vLLM 0.32 asks for

vLLM finds the entry point `blockscale_vllm:register` (a package beside this one, because vLLM loads
it in each of its processes, and importing blockscale takes a second), which imports method.py once
a model is ours.

What is served, and what is refused by name: docs/serving.md. Tests without vLLM are in
tests/integrations/vllm, those in vLLM in tests/clients/test_vllm_plugin.py (`make serve-test`).

SGLang copies vLLM's interface but has no entry point: its table of methods is in its source.
"""
