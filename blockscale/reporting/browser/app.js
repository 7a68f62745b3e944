// SPDX-License-Identifier: BSD-3-Clause
// The page: where tensors come from, which format, and what happens when something changes.
"use strict";

const $ = (id) => document.getElementById(id);
const App = { tensor: null, busy: false, again: false };

/** Random numbers that are the same at every visit (mulberry32). */
function generator(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

const SAMPLES = {
  normal: (i, random) => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random()),
  outliers: (i, random) => SAMPLES.normal(i, random) * (random() < 0.004 ? 30 : 1),
  ramp: (i, random, columns) => ((i % columns) / (columns - 1)) * 2 - 1,
  scales: (i, random, columns) => SAMPLES.normal(i, random) * 2 ** (8 * Math.floor((4 * (i % columns)) / columns) - 12),
};

function sample(kind) {
  const rows = 48, columns = 128, random = generator(7);
  const x = Float32Array.from({ length: rows * columns }, (_, i) => SAMPLES[kind](i, random, columns));
  return { title: $("sample").selectedOptions[0].text, rows, columns, x };
}

/** Quantizes what is chosen; calls that come meanwhile are put together. */
async function update() {
  if (App.busy) { App.again = true; return; }
  App.busy = true;
  try {
    const format = PAGE.formats[$("format").selectedIndex];
    const { x, rows, columns, title } = App.tensor;
    const found = await quantized(format, x, rows, columns);
    const { sqnr, largest, used, bits } = figures(format, x, found);
    $("title").textContent = `${title}, ${rows} × ${columns}`;
    $("spelling").textContent = format.spelling;
    $("sqnr").textContent = Number.isFinite(sqnr) ? `${sqnr.toFixed(2)} dB` : "exact";
    $("largest").textContent = short(largest);
    $("used").textContent = format.bits > 16 ? used : `${used} of ${2 ** format.bits}`;
    $("bits").textContent = bits.toFixed(bits > 10 ? 1 : 3);
    View.show({ format, x, rows, columns, found });
    say("");
  } catch (error) {
    say(Gpu.lost ? `The GPU was lost (${Gpu.lost}): load the page again.` : error.message);
  } finally {
    App.busy = false;
    if (App.again) { App.again = false; update(); }
  }
}

function say(text) {
  $("message").textContent = text;
  $("message").hidden = !text;
}

function take(tensor) {
  App.tensor = tensor;
  update();
}

async function takeFile(file) {
  try {
    const tensors = await tensorsOf(file);
    $("tensor").replaceChildren(...tensors.map((each) => new Option(each.name || each.title)));
    $("tensor").parentElement.hidden = tensors.length < 2;
    $("tensor").onchange = () => take(tensors[$("tensor").selectedIndex].make());
    take(tensors[0].make ? tensors[0].make() : tensors[0]);
  } catch (error) {
    say(error.message);
  }
}

/** Painting numbers: the pointer adds a soft brush of the chosen value. */
function paintable(canvas) {
  const paint = (event) => {
    if (!$("paint").checked || !(event.buttons & 1)) return;
    View.point(event);
    const { x, rows, columns } = App.tensor, at = View.cursor, brush = Number($("brush").value);
    for (let dy = -2; dy <= 2; dy++) {
      for (let dx = -2; dx <= 2; dx++) {
        const row = Math.floor(at / columns) + dy, column = (at % columns) + dx;
        if (row >= 0 && row < rows && column >= 0 && column < columns && dx * dx + dy * dy < 6) x[row * columns + column] = brush;
      }
    }
    update();
  };
  canvas.addEventListener("pointerdown", paint);
  canvas.addEventListener("pointermove", paint);
}

function listen() {
  $("format").append(...PAGE.formats.map((each) => new Option(`${each.name}  (${each.spelling})`, each.name)));
  $("format").value = PAGE.formats.some((each) => each.name === "mxfp4") ? "mxfp4" : PAGE.formats[0].name;
  $("format").onchange = update;
  $("sample").onchange = () => take(sample($("sample").value));
  $("file").onchange = () => $("file").files[0] && takeFile($("file").files[0]);
  $("clear").onclick = () => { $("paint").checked = true; take({ title: "Drawn", rows: 48, columns: 128, x: new Float32Array(48 * 128) }); };
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => { event.preventDefault(); if (event.dataTransfer.files[0]) takeFile(event.dataTransfer.files[0]); });
  for (const each of document.querySelectorAll(".grid")) {
    each.addEventListener("pointermove", (event) => View.shown && !(event.buttons & 1) && View.point(event));
    each.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
      if (event.key in moves && View.shown) { event.preventDefault(); View.move(...moves[event.key]); }
    });
    paintable(each);
  }
}

async function begin() {
  listen();
  try {
    $("gpu").textContent = await Gpu.start();
    App.tensor = sample("normal");
    await update();
    const { equal, all, cells, wrong } = await check((done, of) => { $("checks").textContent = `checking ${done} of ${of} …`; });
    $("checks").textContent = `${equal} of ${all} checks equal`;
    $("checks").className = equal === all ? "right" : "wrong";
    $("checks").title = wrong.length ? wrong.join("\n") : `${cells.toLocaleString("en")} codes, values and scales have the reference's bits`;
    document.documentElement.dataset.checked = `${equal}/${all}`;
    if (wrong.length) say(`This GPU computes other bits than the reference: ${wrong.join("; ")}.`);
  } catch (error) {
    $("gpu").textContent = "no GPU";
    document.documentElement.dataset.checked = "none";
    say(error.message);
  }
}

begin();
