// SPDX-License-Identifier: BSD-3-Clause
"use strict";
// The table of layers: sorted, filtered, a part of it shown; and the panel about the chosen one.
const Layers = {
  PART: 200,
  texts: ["name", "format"],
  columns: {},
  all: [],
  found: [],
  shown: 0,
  key: null,
  down: false,
  chosen: null,
  grids: {},

  told(tensor, key) {
    const value = tensor[key];
    if (key === "sqnr" && tensor.exact) return "exact";
    if (value == null) return "–";
    if (key === "shape") return value.join(" × ") || "scalar";
    if (key === "bytes") return Draw.bytes(value);
    if (key === "bits" || key === "entropy" || key === "sqnr") return value.toFixed(2);
    if (key === "clipped" || key === "at_ends") return Draw.share(value);
    return typeof value === "number" ? Draw.number(value) : value;
  },

  // A long name may be broken after its separators.
  breakable: (text) => text.split(/(?<=[.:/_])/).flatMap((part) => [part, Draw.element("wbr")]),

  start(tensors, formats) {
    [Layers.all, Layers.grids] = [tensors, formats];
    const find = (id) => document.getElementById(id);
    for (const head of document.querySelectorAll("#table th")) {
      Layers.columns[head.dataset.key] = { title: head.textContent, head };
      head.firstElementChild.addEventListener("click", () => Layers.sort(head.dataset.key));
    }
    for (const key of ["sqnr", "max_error", "clipped"]) {
      Layers.columns[key].head.hidden = Layers.columns[key].missing = !tensors.some((t) => t[key] != null || t.exact);
    }
    const order = find("order");
    order.append(Draw.element("option", { value: "" }, "place in the file"));
    for (const [key, { title, missing }] of Object.entries(Layers.columns)) if (!missing) order.append(Draw.element("option", { value: key }, title));
    order.addEventListener("change", () => order.value ? Layers.sort(order.value) : Layers.unsort());
    find("filter").addEventListener("input", Layers.search);
    find("which").addEventListener("change", Layers.search);
    find("filter").form.addEventListener("submit", (event) => event.preventDefault());
    find("more").addEventListener("click", () => Layers.show(Layers.PART));
    if (!tensors.some((tensor) => tensor.quantized)) find("which").value = "";
    find("table").tBodies[0].addEventListener("keydown", Layers.keys);
    Layers.search();
  },

  search() {
    const words = document.getElementById("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const which = document.getElementById("which").value;
    const fits = (tensor) => (!which || tensor.quantized === (which === "quantized")) && words.every((word) => `${tensor.name} ${tensor.format} ${tensor.spelling}`.toLowerCase().includes(word));
    Layers.found = Layers.all.filter(fits);
    if (Layers.key) Layers.order();
    Layers.fill();
  },

  // By a column: first what is worst or largest, then the other way round.
  sort(key) {
    const text = Layers.texts.includes(key), up = text || key === "sqnr";
    Layers.down = Layers.key === key ? !Layers.down : !up;
    Layers.key = key;
    document.getElementById("order").value = key;
    Layers.order();
    Layers.fill();
  },
  unsort() {
    Layers.key = null;
    Layers.search();
  },
  order() {
    const { key, down } = Layers;
    const of = (tensor) => key === "sqnr" && tensor.exact ? Infinity : tensor[key];
    Layers.found.sort((one, other) => {
      const [a, b] = [of(one), of(other)];
      if (a == null || b == null) return (a == null) - (b == null); // what is not known comes last
      const side = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a === b ? 0 : a < b ? -1 : 1;
      return down ? -side : side;
    });
  },

  fill() {
    for (const [key, { head }] of Object.entries(Layers.columns)) {
      if (key === Layers.key) head.setAttribute("aria-sort", Layers.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    document.getElementById("table").tBodies[0].replaceChildren();
    Layers.shown = 0;
    Layers.show(Layers.PART);
    document.getElementById("count").textContent = `${Layers.found.length.toLocaleString("en")} of ${Layers.all.length.toLocaleString("en")}`;
  },
  show(count) {
    const part = Layers.found.slice(Layers.shown, Layers.shown + count);
    document.getElementById("table").tBodies[0].append(...part.map(Layers.row));
    Layers.shown += part.length;
    const left = Layers.found.length - Layers.shown, more = document.getElementById("more");
    more.hidden = left === 0;
    more.textContent = `Show ${Math.min(left, Layers.PART)} more of ${left.toLocaleString("en")}`;
  },
  row(tensor) {
    const cells = Object.entries(Layers.columns).filter(([, { missing }]) => !missing).map(([key, { title }]) => {
      const plain = Layers.texts.includes(key), told = Layers.told(tensor, key);
      return Draw.element("td", { "data-label": title, class: plain ? "title" : "n", ...(key === "format" ? { title: tensor.spelling } : {}) }, ...(plain ? Layers.breakable(told) : [told]));
    });
    const row = Draw.element("tr", { tabindex: 0, "aria-selected": tensor === Layers.chosen }, ...cells);
    row.tensor = tensor;
    row.addEventListener("click", () => Layers.choose(tensor, true));
    return row;
  },
  keys(event) {
    const row = event.target.closest("tr");
    const next = { ArrowDown: row?.nextElementSibling, ArrowUp: row?.previousElementSibling }[event.key];
    if (next) next.focus();
    if (next || event.key === "Enter" || event.key === " ") {
      Layers.choose((next ?? row).tensor);
      event.preventDefault();
    }
  },

  choose(tensor, look = false) {
    Layers.chosen = tensor;
    for (const row of document.getElementById("table").tBodies[0].rows) row.setAttribute("aria-selected", row.tensor === tensor);
    const detail = document.getElementById("detail"), chart = Draw.element("div", { class: "chart" });
    const facts = [["format", tensor.format, true], ...(tensor.spelling === tensor.format ? [] : [["spelling", tensor.spelling, true]]), ...["bytes", "bits", "sqnr", "max_error", "clipped", "at_ends", "entropy"].filter((key) => tensor[key] != null || (key === "sqnr" && tensor.exact)).map((key) => [Layers.columns[key].title, Layers.told(tensor, key)]), ["shape", Layers.told(tensor, "shape"), true]];
    for (const key of ["layout", "input", "output", "before", "file", "note"]) if (tensor[key]) facts.push([key, tensor[key], true]);
    if (tensor.odd) facts.push(["NaN or infinite on one side", String(tensor.odd), true]);
    const list = Draw.element("dl", { class: "facts" }, ...facts.map(([name, value, long]) => Draw.element("div", long ? { class: "long" } : {}, Draw.element("dt", {}, name), Draw.element("dd", {}, value))));
    detail.replaceChildren(Draw.element("h2", {}, ...Layers.breakable(tensor.name)), chart, list);
    Layers.draw();
    if (look && matchMedia("(max-width: 1080px)").matches) detail.scrollIntoView({ block: "start" });
  },
  draw() {
    const tensor = Layers.chosen, chart = document.querySelector("#detail .chart");
    if (!tensor || !chart) return;
    if (tensor.histogram) Charts.histogram(chart, tensor, tensor.histogram.grid ?? Layers.grids[tensor.format] ?? []);
    else chart.replaceChildren(Draw.element("p", { class: "quiet" }, tensor.quantized ? "Its histogram is not kept in this page." : "It is stored in float."));
  },
};
