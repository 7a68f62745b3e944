// SPDX-License-Identifier: BSD-3-Clause
"use strict";
// What was described, put in its places.
(() => {
  const find = (id) => document.getElementById(id);
  const { tensors, formats, search } = JSON.parse(find("data").textContent);
  const quantized = (tensors ?? []).filter((tensor) => tensor.quantized);

  function charts() {
    if (tensors) {
      const choose = (tensor) => Layers.choose(tensor, true);
      Charts.layers(find("chart-sqnr"), quantized, "sqnr", "SQNR in dB: higher is closer to the source", (v) => Draw.number(v), choose);
      const clipped = quantized.some((tensor) => tensor.clipped != null);
      const title = clipped ? "Clipped: share of weights beyond the ends of the grid" : "Codes at the ends of the grid";
      Charts.layers(find("chart-clipped"), quantized, clipped ? "clipped" : "at_ends", title, (v) => `${Draw.number(100 * v)} %`, choose);
      Layers.draw();
    }
    if (search?.points.length) {
      Charts.pareto(find("chart-pareto"), search, (point) => {
        find("recipe").hidden = false;
        find("recipe").textContent = `${point.name || "recipe"} · ${point.bits.toFixed(3)} bits · ${search.measure} ${point.quality}\n${point.recipe}`;
      });
    }
  }

  if (tensors) {
    for (const row of document.querySelectorAll("tr[data-format]")) {
      if (row.dataset.quantized === "1") Charts.formats.push(row.dataset.format);
      const color = Charts.color(row.dataset.format), share = Draw.element("i", { title: row.dataset.format });
      row.querySelector(".swatch").style.background = share.style.background = color;
      share.style.flexGrow = row.dataset.bytes;
      find("shares").append(share);
    }
    Layers.start(tensors, formats);
    const worst = quantized.filter((tensor) => tensor.histogram).sort((a, b) => (a.sqnr ?? 1e9) - (b.sqnr ?? 1e9))[0];
    if (worst) Layers.choose(worst);
  }
  charts();
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) charts();
    width = innerWidth;
  });
  document.documentElement.dataset.ready = "yes";
})();
