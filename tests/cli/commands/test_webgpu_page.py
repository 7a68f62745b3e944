# SPDX-License-Identifier: BSD-3-Clause
"""`blockscale webgpu-page`."""

import json

import pytest
from typer.testing import CliRunner

from blockscale.cli.app import app


def run(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def test_it_writes_one_file(tmp_path):
    out = tmp_path / "page.html"
    done = run("webgpu-page", out, "--formats", "mxfp4,int8:group32:fp32")
    assert done.exit_code == 0, done.output
    assert "2 formats" in done.output
    text = out.read_text()
    assert text.startswith("<!doctype html>")
    assert '"name":"int8:group32:fp32"' in text
    assert list(tmp_path.iterdir()) == [out]


def test_json_says_what_was_written(tmp_path):
    out = tmp_path / "page.html"
    told = json.loads(run("webgpu-page", out, "--formats", "int8", "--json").stdout)
    size = out.stat().st_size
    assert told == {"path": str(out), "formats": ["int8"], "bytes": size, "left_out": {}}


def test_every_named_format_by_default(tmp_path):
    from blockscale.core.parse import formats

    said = run("webgpu-page", tmp_path / "page.html").output
    assert f"{len(formats()) - 2} formats" in said
    assert "left out nvfp4_token: e2m1:group16:(e4m3:token:fp32): a page knows" in said
    assert "left out nvfp4_e5m3: e2m1:group16:ue5m3 has no shaders" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--formats", "mxfp5"), "mxfp5"),
        (("--formats", "int4:flat64@0:fp32"), "lie together"),
    ],
)
def test_wrong_formats_write_nothing(tmp_path, arguments, said):
    done = run("webgpu-page", tmp_path / "page.html", *arguments)
    assert done.exit_code != 0
    assert said in str(done.exception) + done.output
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_stays(tmp_path):
    out = tmp_path / "page.html"
    out.write_text("mine")
    done = run("webgpu-page", out, "--formats", "mxfp4")
    assert done.exit_code != 0
    assert out.read_text() == "mine"
    assert run("webgpu-page", out, "--formats", "mxfp4", "--force").exit_code == 0
    assert out.read_text() != "mine"


def test_a_directory_that_is_not_there(tmp_path):
    done = run("webgpu-page", tmp_path / "no" / "page.html")
    assert done.exit_code != 0
    assert "create it first" in str(done.exception) + done.output
