// The nodes as basins, and the flows between them.

import { Basin } from "./basin.js";
import { byId, html, keyed, set, style, svg } from "./dom.js";
import { arrange, flows, river } from "./layout.js";
import { list, rate, share } from "./words.js";

/** The most nodes that the summary names. */
const NAMED = 4;

export class Picture {
  #root = byId("basins");
  #basins = new Map();
  #choose;
  #last = null;
  #backs = svg("g");
  #streams = svg("g", { class: "streams", "aria-hidden": "true" });
  #fronts = svg("g");
  #labels = svg("g", { class: "labels", "aria-hidden": "true" });

  /** `choose` is told the name of a basin that is picked. */
  constructor(choose) {
    this.#choose = choose;
    const stop = (offset, opacity) => svg("stop", { offset, class: "source", "stop-opacity": opacity });
    const source = svg(
      "linearGradient",
      { id: "source", gradientUnits: "userSpaceOnUse", x1: 0, y1: 0, x2: 0, y2: 44 },
      stop(0, 0),
      stop(1, 1),
    );
    this.#root.append(svg("defs", {}, source), this.#backs, this.#streams, this.#fronts, this.#labels);
    new ResizeObserver(() => this.#last && this.draw(...this.#last)).observe(this.#root);
  }

  /** `peak`: the most that this node had to do lately; `chosen`: the node that is looked at, or null. */
  draw(now, peak, chosen) {
    this.#last = [now, peak, chosen];
    const width = this.#root.clientWidth;
    if (width === 0 || !now.nodes.some(({ state }) => state === "here")) return;
    const others = now.nodes.filter(({ state }) => state !== "here").map(({ name }) => name);
    others.sort((one, other) => one.localeCompare(other, undefined, { numeric: true }));
    const layout = arrange(width, now.here, others);
    set(this.#root, { viewBox: `0 0 ${width} ${layout.height}` });
    style(this.#root, { height: `${layout.height}px` });
    this.#drawBasins(layout, now, chosen);
    this.#drawStreams(layout, now, peak);
    this.#tell(now);
  }

  #drawBasins({ boxes }, now, chosen) {
    for (const [name, basin] of this.#basins) {
      if (boxes.has(name)) continue;
      basin.front.remove();
      basin.back.remove();
      this.#basins.delete(name);
    }
    for (const node of now.nodes) {
      let basin = this.#basins.get(node.name);
      if (!basin) {
        basin = new Basin(node.name, this.#choose);
        this.#basins.set(node.name, basin);
        this.#backs.append(basin.back);
        this.#fronts.append(basin.front);
      }
      basin.update(node, boxes.get(node.name), now, node.name === chosen);
    }
  }

  #drawStreams(layout, now, peak) {
    const streams = [...flows(layout, now, peak), ...river(layout, now, peak)];
    const create = ({ kind }) =>
      svg(
        "g",
        { class: `stream ${kind}` },
        svg("path", { class: "body" }),
        svg("path", { class: "ripple" }),
        svg("path", { class: "tip" }),
      );
    keyed(
      this.#streams,
      streams,
      ({ key }) => key,
      create,
      (group, { kind, path, width }) => {
        const [body, ripple, tip] = group.children;
        set(body, { d: path });
        set(ripple, { d: path });
        style(body, { "stroke-width": `${width.toFixed(1)}px`, d: `path("${path}")` });
        style(ripple, {
          "stroke-width": `${Math.min(3, Math.max(1, width * 0.16)).toFixed(1)}px`,
          d: `path("${path}")`,
        });
        set(tip, { d: kind === "in" ? arrow(body, width) : "" });
      },
    );
    const labels = streams.filter(({ flows: number }) => number).map((stream) => ({ ...stream, ...place(stream) }));
    keyed(
      this.#labels,
      labels,
      ({ key }) => key,
      ({ kind }) => svg("text", { class: kind }),
      (text, label) => {
        set(text, { x: label.x, y: label.y, "text-anchor": label.anchor, text: label.text });
      },
    );
  }

  #tell(now) {
    const { total, here } = now;
    const offered = total.local + total.remote;
    const over = now.nodes.filter(({ state, sent }) => state !== "here" && sent >= 0.05);
    over.sort((one, other) => other.sent - one.sent);
    const words = [];
    if (offered < 0.05) words.push(html("span", { text: `No new flows of clients of ${here} now.` }));
    else if (total.remote < 0.05)
      words.push(html("strong", { text: `All ${rate(offered)}` }), ` new flows stay on ${here}.`);
    else {
      const named = over.slice(0, NAMED).map(({ name, sent }) => `${name} ${rate(sent)}`);
      if (over.length > NAMED) named.push(`${over.length - NAMED} more`);
      const kept = total.local / offered;
      words.push(html("strong", { text: share(kept) }), ` of ${rate(offered)} new flows stay on ${here}, `);
      words.push(
        html("strong", { class: "out", text: share(1 - kept) }),
        ` flow over${named.length ? `: ${list(named)}` : ""}.`,
      );
    }
    if (total.inbound >= 0.05) words.push(` ${rate(total.inbound)} come from other nodes.`);
    byId("summary").replaceChildren(...words);
    const more = now.moreNodes;
    byId("more-nodes").hidden = !more;
    if (more) {
      const sent = more.sent >= 0.05 ? `, get ${rate(more.sent)} new flows` : "";
      byId("more-nodes").textContent = `${more.count} more nodes, mean level ${share(more.level)}${sent}.`;
    }
    const alone = now.nodes.length === 1 && !now.mesh;
    if (alone) {
      byId("more-nodes").hidden = false;
      byId("more-nodes").textContent = "Nodes do not tell each other their load: the agents have no --mesh-key-file.";
    }
  }
}

/** The tip of an arrow at the end of a path. */
const arrow = (path, width) => {
  const length = path.getTotalLength();
  const end = path.getPointAtLength(length);
  const size = Math.max(5, width * 0.9);
  return `M${end.x - size} ${end.y + 2}L${end.x} ${end.y - size * 1.3}L${end.x + size} ${end.y + 2}z`;
};

/** Where the number of a flow stands. */
const place = ({ kind, x, y, width, flows: number }) => {
  if (kind === "client") return { x: x + width / 2 + 10, y: 18, anchor: "start", text: `${rate(number)} new flows` };
  if (kind === "out") return { x: x + width / 2 + 7, y: y - 10, anchor: "start", text: rate(number) };
  return { x: x - width / 2 - 6, y: y - 10, anchor: "end", text: rate(number) };
};
