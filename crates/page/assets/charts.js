// The last ten minutes as four charts.

import { html, keyed, set, svg } from "./dom.js";
import { ago, rate, share } from "./words.js";

const HEIGHT = 132;
const [LEFT, RIGHT, TOP, BOTTOM] = [38, 6, 8, 18];
/** Lines of other nodes that get a colour of their own. */
const COLOURS = 6;

/** A round number above another one, for the top of an axis. */
const above = (number) => {
  const size = 10 ** Math.floor(Math.log10(Math.max(number, 1)));
  return [1, 2, 5, 10].map((step) => step * size).find((top) => top >= number) ?? number;
};

const CHARTS = [
  { key: "level", title: "Level", of: "CPU in use", words: share, top: () => 1 },
  { key: "spill", title: "Spill", of: "share of new flows that leave", words: share, top: () => 1 },
  { key: "flows", title: "New flows", of: "per second", words: rate, top: above },
  { key: "failures", title: "Failures", of: "per second", words: rate, top: above },
];

export class Charts {
  #root;
  #charts;
  #last = null;
  /** Points back from now that the pointer is at; null: it is elsewhere. */
  #back = null;

  constructor(root) {
    this.#root = root;
    this.#charts = CHARTS.map((chart) => this.#create(chart));
    new ResizeObserver(() => this.#last && this.draw(...this.#last)).observe(root);
  }

  /** With a service or a node in place of this one, if one is picked. */
  draw(past, now, service, node) {
    this.#last = [past, now, service, node];
    const whose = service ?? node ?? now.here;
    const subject = service ? past.service : past.nodes.get(node ?? now.here);
    const minutes = Math.round((past.shown * past.period) / 60);
    const time = minutes === 1 ? "minute" : minutes === 10 ? "ten minutes" : `${minutes} minutes`;
    set(document.getElementById("past-title"), { text: `The last ${time} of ${whose}` });
    for (const chart of this.#charts) {
      const lines = chart.key === "level" ? levels(past, now, node) : one(chart.key, subject, service || !node);
      this.#drawOne(chart, lines, past, now);
    }
  }

  #create(chart) {
    const title = html("h3", {}, chart.title, html("small", { text: ` ${chart.of}` }));
    const value = html("output");
    const plot = svg("svg", { role: "img", tabindex: 0 });
    const parts = {
      grid: svg("g", { class: "grid" }),
      lines: svg("g", { class: "lines" }),
      cursor: svg("path", { class: "cursor" }),
    };
    plot.append(parts.grid, parts.lines, parts.cursor);
    const legend = html("ul", { class: "names" });
    this.#root.append(html("figure", { class: "chart" }, html("figcaption", {}, title, value), plot, legend));
    plot.dataset.chart = chart.key;
    plot.addEventListener("pointermove", (event) => this.#point(event, plot));
    plot.addEventListener("pointerleave", () => this.#at(null));
    plot.addEventListener("blur", () => this.#at(null));
    plot.addEventListener("keydown", (event) => this.#step(event));
    return { ...chart, plot, parts, value, legend };
  }

  #drawOne({ key, title, words, top, plot, parts, value, legend }, lines, past, now) {
    const width = plot.clientWidth;
    if (width === 0) return;
    set(plot, { viewBox: `0 0 ${width} ${HEIGHT}` });
    const known = lines.flatMap(({ values }) => values.filter((number) => number !== null));
    const highest = top(Math.max(0, ...known));
    const x = (back) => width - RIGHT - ((width - LEFT - RIGHT) * back) / (past.shown - 1);
    const y = (number) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - Math.min(1, number / highest));
    grid(parts.grid, { x, y, width, highest, words, past, crest: key === "level" ? now.crest : null });
    keyed(
      parts.lines,
      lines,
      ({ name }) => name,
      () => svg("g", {}, svg("path", { class: "area" }), svg("path", { class: "line" })),
      (group, line) => {
        const paths = trace(line.values, x, y);
        set(group, { class: line.kind });
        set(group.children[0], { d: line.filled ? paths.area(y(0)) : "" });
        set(group.children[1], { d: paths.line });
      },
    );
    const back = this.#back;
    set(parts.cursor, { d: back === null ? "" : `M${x(back)} ${TOP}V${HEIGHT - BOTTOM}` });
    const main = lines.find(({ main }) => main) ?? lines[0];
    const number = main?.values.at(-1 - (back ?? 0)) ?? null;
    const text = number === null ? "–" : words(number);
    set(value, { text: back === null ? text : `${text}, ${ago(back * past.period)}` });
    set(plot, {
      "aria-label": `${title} of ${main?.name ?? "nobody"}: ${text}, at most ${known.length ? words(Math.max(...known)) : "–"} lately. Arrow keys go back in time.`,
    });
    const named = lines.length > 1 ? lines.filter(({ kind }) => kind !== "rest") : [];
    keyed(
      legend,
      named,
      ({ name }) => name,
      ({ name }) => html("li", { text: name }),
      (item, { kind }) => set(item, { class: kind }),
    );
  }

  #point(event, plot) {
    const [past] = this.#last ?? [];
    if (!past) return;
    const { left, width } = plot.getBoundingClientRect();
    const part = (width - RIGHT - (event.clientX - left)) / (width - LEFT - RIGHT);
    this.#at(Math.round(Math.min(1, Math.max(0, part)) * (past.shown - 1)));
  }

  #step(event) {
    const step = { ArrowLeft: 1, ArrowRight: -1 }[event.key];
    if (!step || !this.#last) return;
    event.preventDefault();
    this.#at(Math.min(this.#last[0].shown - 1, Math.max(0, (this.#back ?? 0) + step)));
  }

  #at(back) {
    if (back === this.#back) return;
    this.#back = back;
    if (this.#last) this.draw(...this.#last);
  }
}

/** The level of every node; the one that is looked at in front. */
const levels = (past, now, node) => {
  const looked = node ?? now.here;
  const shown = now.nodes.map(({ name }) => name).filter((name) => past.nodes.has(name));
  const others = shown
    .filter((name) => name !== looked)
    .sort((one, other) => one.localeCompare(other, undefined, { numeric: true }));
  const lines = others.map((name, index) => ({
    name,
    kind: index < COLOURS ? `colour${index + 1}` : "rest",
    values: past.nodes.get(name).level,
  }));
  const series = past.nodes.get(looked);
  if (series) lines.push({ name: looked, kind: "own", main: true, values: series.level });
  return lines;
};

const KINDS = { spill: "out", flows: "own", failures: "bad" };

/** One line; of flows also those that left, in front of them. */
const one = (key, series, parted) => {
  if (!series) return [];
  const lines = [
    { name: key === "flows" ? "all" : key, kind: KINDS[key], filled: true, main: true, values: series[key] },
  ];
  if (key === "flows" && parted) {
    const left = series.flows.map((flows, index) => (flows === null ? null : flows * (series.spill[index] ?? 0)));
    lines.push({ name: "left", kind: "out", filled: true, values: left });
  }
  return lines;
};

/** Paths with gaps where nothing is known. The last value is at the right. */
const trace = (values, x, y) => {
  const runs = [];
  let run = null;
  values.forEach((number, index) => {
    if (number === null || number === undefined) {
      run = null;
      return;
    }
    if (!run) runs.push((run = []));
    run.push([x(values.length - 1 - index).toFixed(1), y(number).toFixed(1)]);
  });
  const through = (points) => points.map((point) => point.join(" ")).join("L");
  return {
    // A point alone is a dot, by its round cap.
    line: runs.map((points) => `M${through(points)}${points.length === 1 ? "h0" : ""}`).join(""),
    area: (zero) => runs.map((points) => `M${points[0][0]} ${zero}L${through(points)}V${zero}z`).join(""),
  };
};

const grid = (root, { x, y, width, highest, words, past, crest }) => {
  const marks = [0, 0.5, 1].map((part) => ({
    key: `y${part}`,
    d: `M${LEFT} ${y(part * highest)}H${width - RIGHT}`,
    tx: LEFT - 6,
    ty: y(part * highest) + 4,
    anchor: "end",
    text: words(part * highest),
  }));
  const span = past.shown * past.period;
  [1, 0.5, 0].forEach((part) => {
    const back = part * (past.shown - 1);
    const anchor = { 1: "start", 0: "end" }[part] ?? "middle";
    marks.push({
      key: `x${part}`,
      d: "",
      tx: x(back),
      ty: HEIGHT - 4,
      anchor,
      text: part === 0 ? "now" : `−${Number(((part * span) / 60).toFixed(1))} min`,
    });
  });
  if (crest !== null)
    marks.push({
      key: "crest",
      kind: "crest",
      d: `M${LEFT} ${y(crest)}H${width - RIGHT}`,
      tx: 0,
      ty: 0,
      anchor: "end",
      text: "",
    });
  keyed(
    root,
    marks,
    ({ key }) => key,
    () => svg("g", {}, svg("path"), svg("text")),
    (group, { kind, d, tx, ty, anchor, text }) => {
      set(group, { class: kind });
      set(group.children[0], { d });
      set(group.children[1], { x: tx, y: ty, "text-anchor": anchor, text });
    },
  );
};
