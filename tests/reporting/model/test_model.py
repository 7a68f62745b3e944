# SPDX-License-Identifier: BSD-3-Clause
"""The page in headless Chromium: what a visitor can do, what it says, and what it never does."""

import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
import torch
from safetensors.torch import save_file

import blockscale as bs
from blockscale.core.work import Progress
from blockscale.evaluation.figures import Evaluation, Figure
from blockscale.reporting import model as making
from blockscale.reporting import model as reporting
from blockscale.reporting.model import page
from blockscale.reporting.model.describe import describe
from tests.reporting.browser.chromium import CHROMIUM, WITHOUT_GPU, opened

ODD = "</script><img src=x onerror=alert(1)><!--<b>\x1b[31m\u202e&amp;"
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None,
    reason="NO CHROMIUM HERE: the report is not tested in a browser (apt install chromium)",
)
ROWS = "[...find('table').tBodies[0].rows]"


@pytest.fixture(scope="module")
def data(model, source):
    return describe(model, source=source)


@pytest.fixture
def html(data, search):
    return page(data | {"search": describe(None, search=search)["search"]})


def told(html, script, tmp_path, **options):
    """What a script finds in the page. Its policy would not let the script of a test run."""
    errors = "const errors = []; addEventListener('error', (e) => errors.push(String(e.message)));"
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    assert free != html
    watched = free.replace("<style>", f"<script>{errors}</script><style>", 1)
    assert watched != free
    full = f"const found = await (async () => {{ {script} }})(); return {{ ...found, errors }};"
    found = opened(watched, full, tmp_path, flags=WITHOUT_GPU, ready="ready", **options)
    assert "error" not in found, found
    assert found.pop("errors") == []
    return found


class Elements(HTMLParser):
    """Every element and attribute of a page."""

    def __init__(self, html):
        super().__init__()
        self.seen = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


def hostile(tmp_path):
    """A model and a search whose names are markup and escape sequences."""
    save_file({f"{ODD}.weight": torch.zeros(4, 4)}, tmp_path / "m.safetensors")
    names = {"points": [{"bits": 4, "quality": 1, "name": ODD, "recipe": ODD}]}
    names |= {"quality": ODD, "layers": [{"name": ODD, "candidates": [{"format": ODD, "bits": 4}]}]}
    (tmp_path / "s.json").write_text(json.dumps(names | {"command": ODD, "hardware": {ODD: ODD}}))
    found = describe(tmp_path / "m.safetensors", search=tmp_path / "s.json")
    ledger = [{"status": "kept", "name": ODD, "count": 1, "kind": ODD, "before": 1, "after": 1}]
    counts = {"quantized": 0, "kept": 1, "skipped": 0}
    return found | {
        "title": ODD,
        "ledger": {
            "groups": [ledger[0] | {"what": ODD}], "counts": counts, "notes": [ODD], "file": ODD,
            "bytes_before": 1, "bytes_after": 1, "unlisted": 0, "unlisted_notes": 0,
        },
    }  # fmt: skip


@pytest.mark.xdist_group("chromium")
def test_names_are_text_and_nothing_else(tmp_path):
    text = page(hostile(tmp_path))
    elements = Elements(text).seen
    assert "img" not in {tag for tag, _ in elements}
    assert "b" not in {tag for tag, attrs in elements if attrs}
    assert not [a for _, attrs in elements for a in attrs if a.startswith("on")]
    assert text.count("<script") == len(making.SCRIPTS) + 1
    held = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    name = json.loads(held[1])["tensors"][0]["name"]
    assert name == ODD.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e") + ".weight"


@pytest.mark.slow
@pytest.mark.xdist_group("chromium")
def test_it_needs_nothing_from_elsewhere(html):
    for tag, attrs in Elements(html).seen:
        for key in ("src", "href", "action", "data", "srcset"):
            assert attrs.get(key, "#").startswith(("#", "data:,")), (tag, attrs)
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in html
    assert "url(" not in html
    policies = [attrs["content"] for _, attrs in Elements(html).seen if "http-equiv" in attrs]
    assert [policy.partition(";")[0] for policy in policies] == ["default-src 'none'"]
    assert "unsafe" not in policies[0]


@pytest.mark.slow
@pytest.mark.xdist_group("chromium")
def test_pages_of_many_layers_stay_small(data):
    """The limits of a page, filled: names of 200 characters, all histograms that it may hold."""
    line = next(each for each in data["tensors"] if "codes" in each.get("histogram", {}))
    plain = {key: value for key, value in line.items() if key != "histogram"}
    large = line["histogram"] | {"codes": [123_456] * 96, "weights": [123_456] * 96}
    many = [line | {"histogram": large, "name": "n" * 200}] * 2_000
    many += [plain | {"name": "n" * 200}] * 18_000
    assert len(page(data | {"tensors": many})) < 16e6


@pytest.mark.xdist_group("chromium")
def test_without_jinja_one_sentence_says_so(data, monkeypatch):
    monkeypatch.setattr(making, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"blockscale\[report\]"):
        page(data)


@pytest.mark.xdist_group("chromium")
@pytest.mark.slow
@needs_chromium
def test_the_page_as_it_is_says_nothing_on_the_console(html, tmp_path):
    """With its policy, from a file: its own scripts run, and nothing is refused or requested."""
    path = tmp_path / "report.html"
    path.write_text(html)
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
    logs = ("--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom")
    command = [CHROMIUM, *flags, *logs, f"--user-data-dir={tmp_path / 'browser'}", f"file://{path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert 'data-ready="yes"' in done.stdout
    assert "CONSOLE" not in done.stderr


@pytest.mark.xdist_group("chromium")
@pytest.mark.slow
@needs_chromium
def test_columns_sort_both_ways_by_mouse_and_by_keys(html, data, tmp_path):
    script = f"""
      const column = (i) => {ROWS}.map((row) => row.cells[i].textContent);
      const head = (key) => document.querySelector(`#table th[data-key=${{key}}]`);
      const seen = {{ first: column(0) }};
      head("sqnr").firstElementChild.click();
      seen.up = column(4); seen.side = head("sqnr").getAttribute("aria-sort");
      head("sqnr").firstElementChild.click();
      seen.down = column(4); seen.other = head("sqnr").getAttribute("aria-sort");
      head("bytes").firstElementChild.click();
      seen.sizes = {ROWS}.map((row) => row.tensor.bytes);
      seen.left = head("sqnr").getAttribute("aria-sort");
      seen.tag = head("bytes").firstElementChild.tagName;
      return seen;"""
    seen = told(html, script, tmp_path)
    quantized = [line for line in data["tensors"] if line["quantized"]]
    assert seen["first"] == [line["name"] for line in quantized]
    rising = sorted(line["sqnr"] for line in quantized)
    assert seen["up"] == [f"{value:.2f}" for value in rising]
    assert seen["down"] == seen["up"][::-1]
    assert (seen["side"], seen["other"], seen["left"]) == ("ascending", "descending", None)
    assert seen["sizes"] == sorted((line["bytes"] for line in quantized), reverse=True)
    assert seen["tag"] == "BUTTON"  # which Tab reaches and Enter presses


@pytest.mark.xdist_group("chromium")
@pytest.mark.slow
@needs_chromium
def test_layers_are_filtered_and_chosen(html, data, tmp_path):
    script = f"""
      const names = () => {ROWS}.map((row) => row.cells[0].textContent);
      const set = (id, value, event) => {{
        find(id).value = value; find(id).dispatchEvent(new Event(event));
      }};
      const type = (text) => set("filter", text, "input");
      const show = (which) => set("which", which, "change");
      const seen = {{}};
      type("INT8 proj"); seen.int8 = names(); seen.count = find("count").textContent;
      type("no such layer"); seen.none = names();
      type(""); show("float"); seen.float = names().length;
      show(""); seen.all = names().length;
      show("quantized");
      const row = {ROWS}[1]; row.focus();
      row.dispatchEvent(new KeyboardEvent("keydown", {{ key: "Enter", bubbles: true }}));
      seen.chosen = find("detail").querySelector("h2").textContent; seen.second = names()[1];
      row.dispatchEvent(new KeyboardEvent("keydown", {{ key: "ArrowDown", bubbles: true }}));
      seen.next = find("detail").querySelector("h2").textContent; seen.third = names()[2];
      seen.focus = document.activeElement.rowIndex;
      seen.selected = {ROWS}.filter((row) => row.getAttribute("aria-selected") === "true").length;
      return seen;"""
    seen = told(html, script, tmp_path)
    quantized = [line for line in data["tensors"] if line["quantized"]]
    int8 = [line["name"] for line in quantized if line["format"].startswith("int8")]
    assert seen["int8"] == [name for name in int8 if "proj" in name] != []
    assert seen["count"] == f"{len(seen['int8'])} of {len(data['tensors'])}"
    assert seen["none"] == []
    assert (seen["float"], seen["all"]) == (
        len(data["tensors"]) - len(quantized), len(data["tensors"]),
    )  # fmt: skip
    assert seen["chosen"] == seen["second"]
    assert seen["next"] == seen["third"]
    assert (seen["focus"], seen["selected"]) == (3, 1)


@pytest.mark.xdist_group("chromium")
@pytest.mark.slow
@needs_chromium
def test_charts_tell_what_is_under_the_pointer(html, data, tmp_path):
    """Every value of a histogram by arrow keys; a dot of the others by pointer, and its click."""
    script = """
      const tip = find("tip"), seen = { keys: [] };
      Layers.choose(Layers.all.find((tensor) => tensor.name === "embed.weight"));
      const drawn = document.querySelector("#detail svg"); drawn.focus();
      for (let i = 0; i < 400; i++) {
        drawn.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
        seen.keys.push(tip.textContent);
      }
      drawn.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
      seen.hidden = tip.hidden;
      const at = (svg, point) => {
        const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
        const [clientX, clientY] = [box.left + point.x * scale, box.top + point.y * scale];
        return { clientX, clientY, bubbles: true };
      };
      const dots = document.querySelector("#chart-sqnr svg");
      const [x, y] = dots.querySelector(".dots").getAttribute("d").match(/[\\d.]+/g).map(Number);
      dots.dispatchEvent(new PointerEvent("pointermove", at(dots, { x, y })));
      seen.dot = tip.textContent; seen.shown = !tip.hidden;
      dots.dispatchEvent(new MouseEvent("click", at(dots, { x, y })));
      seen.chosen = find("detail").querySelector("h2").textContent;
      dots.dispatchEvent(new PointerEvent("pointerleave"));
      const front = document.querySelector("#chart-pareto svg");
      const last = [...front.querySelectorAll("circle:not(.ring)")].at(-1);
      const place = at(front, { x: +last.getAttribute("cx"), y: +last.getAttribute("cy") });
      front.dispatchEvent(new PointerEvent("pointermove", place));
      seen.point = tip.textContent;
      front.dispatchEvent(new MouseEvent("click", place));
      seen.recipe = find("recipe").textContent;
      return seen;"""
    seen = told(html, script, tmp_path)
    line = next(each for each in data["tensors"] if each["name"] == "embed.weight")
    counts = line["histogram"]["values"]
    codes = [each for each in dict.fromkeys(seen["keys"]) if each.startswith("code")]
    assert [int(re.search(r"\n([\d,]+) el", each)[1].replace(",", "")) for each in codes] == counts
    assert codes[0].startswith("code -6\n")
    assert any(each.startswith("weights in") for each in seen["keys"])
    assert seen["hidden"]
    name, fmt, sqnr = seen["dot"].split("\n")
    pointed = next(each for each in data["tensors"] if each["name"] == name)
    assert fmt == pointed["format"]
    assert sqnr == f"SQNR {pointed['sqnr']:.2f}"
    assert seen["chosen"] == name
    assert seen["point"].split("\n")[:2] == ["8.250 bits", "cosine 0.999"]
    assert '{"weight": "mxfp8"}' in seen["recipe"]


@pytest.mark.xdist_group("chromium")
@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("many", [False, True])
def test_a_phone_scrolls_one_way(html, data, tmp_path, many):
    """375 pixels wide, in a frame; long names and formats as well."""
    if many:
        name, fmt = f"model.{'deep' * 40}", f"book({'0.125,' * 40}1)"
        long = [
            {key: value for key, value in line.items() if key != "histogram"}
            | {"name": f"{name}.{i}", "format": fmt}
            for i, line in enumerate(data["tensors"])
        ]
        html = page(data | {"tensors": long, "title": "model" * 50})
    script = """
      const frame = document.createElement("iframe");
      Object.assign(frame.style, { width: "375px", height: "800px", border: "0" });
      frame.srcdoc = PAGE;
      document.body.append(frame);
      await until(() => frame.contentDocument?.documentElement?.dataset.ready);
      const inside = frame.contentDocument, root = inside.documentElement;
      return {
        width: frame.contentWindow.innerWidth, scroll: root.scrollWidth,
        label: getComputedStyle(inside.querySelector("#table td.n"), "::before").content,
      };"""
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    held = json.dumps(free).replace("<", "\\u003c")
    seen = told(html, script.replace("PAGE", held), tmp_path)
    assert seen["width"] == 375
    assert seen["scroll"] <= 375
    assert seen["label"] == '"size"'


@pytest.mark.xdist_group("chromium")
@pytest.mark.slow
@needs_chromium
def test_it_is_dark_where_the_system_is(html, tmp_path):
    script = """
      const { backgroundColor: ground, color: ink } = getComputedStyle(document.body);
      return { ground, ink };"""

    def light(color):
        return sum(map(int, re.findall(r"\d+", color)[:3])) / 3

    flags = (*WITHOUT_GPU, "--blink-settings=preferredColorScheme=0")
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    dark = opened(free, script, tmp_path / "dark", flags=flags, ready="ready")
    bright = told(html, script, tmp_path / "bright")
    assert light(dark["ground"]) < 60 < 180 < light(dark["ink"])
    assert light(bright["ink"]) < 60 < 180 < light(bright["ground"])


@pytest.mark.xdist_group("chromium")
@pytest.mark.slow
@needs_chromium
def test_hostile_names_are_shown_and_do_nothing(tmp_path):
    html = page(hostile(tmp_path))
    script = f"""
      return {{ title: document.querySelector("h1").textContent, images: document.images.length,
        bold: document.querySelectorAll("main td b").length,
        row: {ROWS}[0].cells[0].textContent }};"""
    seen = told(html, script, tmp_path / "browser")
    assert seen["title"] == ODD
    assert (seen["images"], seen["bold"]) == (0, 0)
    assert seen["row"].startswith("</script><img src=x")


@pytest.mark.xdist_group("chromium")
def test_chromium_is_looked_for():
    assert CHROMIUM is None or shutil.which(CHROMIUM)


# `bs.report`: what it writes, and what it leaves as it was.


def test_a_page_appears_whole(model, source, tmp_path):
    out = tmp_path / "report.html"
    data = bs.report(model, out, source=source)
    text = out.read_text()
    assert text.startswith("<!doctype html>")
    assert text.rstrip().endswith("</html>")
    assert data["model"]["files"][0]["sha256"] in text
    assert list(tmp_path.iterdir()) == [out]


def test_stopped_it_leaves_what_was_there(model, tmp_path):
    class Stop(Progress):
        def advance(self, name="", amount=1):
            raise KeyboardInterrupt

    out = tmp_path / "report.html"
    out.write_text("mine")
    with pytest.raises(KeyboardInterrupt):
        bs.report(model, out, progress=Stop())
    assert out.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [out]


def test_errors_come_before_the_work(model, search, tmp_path, monkeypatch):
    def never(*_, **__):
        raise AssertionError("it began to work")

    monkeypatch.setattr(reporting, "describe", never)
    with pytest.raises(ValueError, match="create it first"):
        bs.report(model, tmp_path / "no" / "report.html")
    with pytest.raises(ValueError, match="is a directory"):
        bs.report(model, tmp_path)
    with pytest.raises(ValueError, match="both searches"):
        bs.report(search, search=search)
    monkeypatch.setattr(making, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="jinja2"):
        bs.report(model, tmp_path / "report.html")


def test_a_search_alone(search, tmp_path):
    data = bs.report(search, tmp_path / "s.html")
    assert len(data["search"]["points"]) == 3
    assert "chart-pareto" in (tmp_path / "s.html").read_text()


def test_an_evaluation_stands_on_the_page(model, tmp_path):
    path, out = tmp_path / "e.json", tmp_path / "report.html"
    figures = {"loss added": Figure(0.12346, 0.01, 16, 8176.0), "kl": Figure(0.5, math.nan, 1, 9.0)}
    Evaluation("next-token", figures).save(path)
    data = bs.report(model, out, evaluation=path)
    assert data["evaluation"]["loss added"]["mean"] == 0.12346
    text = out.read_text()
    assert ">0.1235<" in text and ">–<" in text
    path.write_text("{}")
    with pytest.raises(ValueError, match="is no evaluation"):
        bs.report(model, tmp_path / "other.html", evaluation=path)
    assert not (tmp_path / "other.html").exists()


def test_what_is_no_model_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(bs.FileError, match="unrecognised checkpoint format"):
        bs.report(tmp_path / "empty", tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
