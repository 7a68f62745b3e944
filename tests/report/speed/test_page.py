"""The page and its plots: from a run's file alone, the same each time."""

import json

import pytest

from blockscale.report.speed.page import PLACES, pages
from tests.support.invented_speed import invented

NOTES = "<!-- source -->\n# Performance\n\n" + "\n\n".join(PLACES) + "\n\nTried: nothing.\n"


def test_the_page_of_a_run():
    made = pages(NOTES, ("benchmarks/results/full.json", invented()))
    assert list(made) == [
        "performance.md",
        "images/performance-primitives.svg",
        "images/performance-linear.svg",
    ]
    page = made["performance.md"]
    assert "<!-- source -->" not in page
    assert not any(place in page for place in PLACES)
    assert page.endswith("Tried: nothing.\n")
    assert "| run | `benchmarks/results/full.json` |" in page
    assert "| mxfp4 | float32 | 0.50* ✗ 0.8 |  |  |" in page
    assert "| torchao mxfp4 eager | quantize | mxfp4 | 0.05 | 0.50* ✗ 0.8 |" in page
    assert "| bfp8 x bfp8 | 0.100 ✓ | 0.40 |" in page
    assert "| bfp8 x bfp8 | 0.020 |" in page  # predicted: 10 MB over 50 GB/s, of 10 ms
    assert page.count("late: OSError: no library") == 1
    assert made == pages(
        NOTES, ("benchmarks/results/full.json", json.loads(json.dumps(invented())))
    )


def test_the_page_of_a_gpu():
    run = json.loads(json.dumps(invented()).replace("torch fp32", "torch bf16"))
    run["settings"]["device"] = "cuda"
    run["hardware"]["devices"] = [{"name": "NVIDIA H200"}]
    made = pages(NOTES, ("benchmarks/results/full-cuda.json", run), "performance_cuda")
    assert list(made) == [
        "performance_cuda.md",
        "images/performance_cuda-primitives.svg",
        "images/performance_cuda-linear.svg",
    ]
    page = made["performance_cuda.md"]
    assert "docs/performance_cuda_notes.md" in page
    assert "| device | NVIDIA H200 |" in page
    assert "relative to torch bf16's F.linear" in page


def test_the_page_without_a_run():
    made = pages(NOTES, None)
    assert list(made) == ["performance.md"]
    assert made["performance.md"].count("No full run is committed yet") == len(PLACES)


def test_notes_without_a_place():
    with pytest.raises(ValueError, match="no line <!-- predicted -->"):
        pages(NOTES.replace("<!-- predicted -->", ""), None)
