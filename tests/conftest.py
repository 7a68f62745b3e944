# SPDX-License-Identifier: BSD-3-Clause
"""Every test run draws the same numbers, and nothing asks the network."""

import gc
import importlib
import os
import random
from collections.abc import Iterator
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is first imported
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Inductor otherwise starts a process that imports torch again, and compiles no faster for it.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# What torch remembers of fake tensors' ops is a sixth of an export's time: most sizes are free and
# of that export alone, so that little is found again.
os.environ.setdefault("TORCH_FAKE_TENSOR_DISPATCH_CACHE", "0")

import hypothesis
import numpy as np
import pytest
import torch

from tests.support.durations import FILE, Durations
from tests.support.read_once import read_once
from tests.support.reports import OneMessage
from tests.support.rewriting import rewrite_share
from tests.support.schedule import Budget
from tests.support.some import choose, is_left_out, left_out_by

if not torch.cuda.is_available():  # before anything imports Triton, as torchao does: it decorates
    os.environ["TRITON_INTERPRET"] = "1"  # its own functions when it is imported
    # `torch.manual_seed` keeps its caller's whole stack for a device that may come later: half a
    # millisecond of each test, and memory that grows.
    for device in (torch.cuda, torch.xpu, torch.mtia):
        device.manual_seed_all = lambda seed: None

# A first call may compile or page in: time says nothing about a property.
hypothesis.settings.register_profile(
    "blockscale", derandomize=True, deadline=None, database=None, print_blob=False
)
hypothesis.settings.load_profile("blockscale")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
THREADS = torch.get_num_threads()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-case", action="store_true", help="of tests marked `some` or `pairs`, too"
    )
    parser.addoption(
        "--budget", type=float, help="seconds of processor time: no more tests than fit into it"
    )
    parser.addoption(
        "--base", metavar="COMMIT", default="HEAD", help="of --budget: what changed since is first"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Durations(config.rootpath / FILE), "durations")
    config.pluginmanager.register(OneMessage(), "one message")
    seconds = config.getoption("--budget")
    if seconds is not None:
        config.pluginmanager.register(Budget(seconds, config.getoption("--base")))


def pytest_sessionstart(session: pytest.Session) -> None:
    rewrite_share(session.config)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> Any:
    """No items for the cases of tests that `-m` leaves out as a whole: twelve thousand of them."""
    marks = left_out_by(collector.config.option.markexpr)
    if marks and name.startswith("test_") and not any("::" in arg for arg in collector.config.args):
        return [] if is_left_out(collector, obj, marks) else None
    return None


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """No items either for the cases that `-m` leaves out of a test that has others."""
    yield
    config = metafunc.config
    named = any("::" in arg for arg in config.args)
    without = set() if named else left_out_by(config.option.markexpr)
    choose(metafunc, config.getoption("--every-case"), without)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Tests and libraries stay, so the collector need not look at them: neither while they come,
    which is a fifth of the time that it takes, nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # An export makes so many objects that a tenth of its time is looking at them, at 700.
        gc.set_threshold(10_000, 20, 50)
        gc.enable()


def pytest_runtest_setup() -> None:
    """Before each test, as any may have been the first to import torch's exporters."""
    read_once()


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - libraries draw from the global state
    torch.manual_seed(0)
    # Those of a test that set them stay, and wait for work at full speed: in a process of two that
    # have two processors, tests after it took three times as long, and sums had other bits.
    if torch.get_num_threads() != THREADS:
        torch.set_num_threads(THREADS)


@pytest.fixture(autouse=True, scope="session")
def _data_parallel_on_no_device() -> Iterator[None]:
    """Once `bs.webgpu()` has made a device, torch's DataParallel takes it, and cannot scatter to
    it: tests of wrapped models must not depend on which ran before in their process."""
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            module = importlib.import_module("torch.nn.parallel.data_parallel")
            patch.setattr(module, "_get_available_device_type", none)
        yield


def none() -> None:
    """No device."""
