"""Every test run draws the same numbers, and nothing asks the network."""

import os
import random

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is first imported
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import hypothesis
import numpy as np
import pytest
import torch

if not torch.cuda.is_available():  # before anything imports Triton, as torchao does: it decorates
    os.environ["TRITON_INTERPRET"] = "1"  # its own functions when it is imported

# A first call may compile or page in: time says nothing about a property.
hypothesis.settings.register_profile(
    "blockscale", derandomize=True, deadline=None, database=None, print_blob=False
)
hypothesis.settings.load_profile("blockscale")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - libraries draw from the global state
    torch.manual_seed(0)
