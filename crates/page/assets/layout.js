// Where basins and flows are drawn: numbers in, numbers out.

/** Width of all flows of this node's clients when they were most, in pixels. */
const WIDEST = 40;
/** The narrowest flow that is drawn. */
const THIN = 2;
/** Flows per second below which nothing is drawn. */
const TRACE = 0.05;

/** Places of the basins: this node's on top, the others below it in rows. Returns boxes by name, and the height of all. */
export const arrange = (width, here, others) => {
  const boxes = new Map();
  const own = { w: Math.min(330, width * 0.56), h: Math.min(160, width * 0.3) };
  const top = 40;
  boxes.set(here, { ...own, x: (width - own.w) / 2, y: top });
  if (others.length === 0) return { boxes, height: top + own.h + 28 };
  const rows = divide(others, Math.max(2, Math.floor(width / 168)));
  const cell = width / rows[0].length;
  const w = Math.min(150, cell - 22);
  const h = w * 0.62;
  const rowHeight = h + 86;
  const first = top + own.h + Math.min(92, width * 0.16);
  rows.forEach((names, row) => {
    const left = (width - names.length * cell) / 2;
    names.forEach((name, column) =>
      boxes.set(name, { w, h, x: left + (column + 0.5) * cell - w / 2, y: first + row * rowHeight }),
    );
  });
  return { boxes, height: first + rows.length * rowHeight - 22 };
};

/** Every other row has one less, so that what flows to it falls between those above it. */
const divide = (names, fit) => {
  if (names.length <= fit) return [names];
  // Five where four fit are three and two.
  const most = names.length < 2 * fit - 1 ? Math.ceil((names.length + 1) / 2) : fit;
  const rows = [];
  for (let from = 0; from < names.length;) {
    const count = most - (rows.length % 2);
    rows.push(names.slice(from, from + count));
    from += count;
  }
  return rows;
};

/** The height of a level in a box, from the top of the picture. */
export const surface = ({ y, h }, level) => y + h * (1 - Math.min(1, Math.max(0, level ?? 0)));

/** Pixels of width for a new flow per second. */
const scale = (peak, offered) => WIDEST / Math.max(peak, offered, 1);

const thickness = (flows, by) => Math.max(THIN, flows * by);

/** Where the flow of this node's clients comes down. */
const inlet = ({ x, w }) => x + w * 0.68;

/** The flow of this node's clients, from above into its basin: all of it down to the crest, and below it what stays. */
export const river = ({ boxes }, now, peak) => {
  const node = now.nodes.find(({ state }) => state === "here");
  const box = boxes.get(node.name);
  const { local, remote } = now.total;
  if (local + remote < TRACE) return [];
  const by = scale(peak, local + remote);
  const [x, crest, end] = [inlet(box), surface(box, now.crest), surface(box, node.level) + 4];
  const all = {
    key: "client",
    kind: "client",
    flows: local + remote,
    width: thickness(local + remote, by),
    x,
    path: `M${n(x)} 0V${n(crest)}`,
  };
  if (local < TRACE) return [all];
  const stays = {
    key: "stay",
    kind: "client stay",
    width: thickness(local, by),
    x,
    path: `M${n(x)} ${n(crest - 1)}V${n(Math.max(end, crest + 4))}`,
  };
  return [stays, all];
};

/**
 * The flows between this node and the others, with the paths that they take. What flows over leaves above the crest of this
 * node's basin, to the left or to the right; what goes farther leaves above what falls before it, so that none cross.
 */
export const flows = ({ boxes }, now, peak) => {
  const node = now.nodes.find(({ state }) => state === "here");
  const own = boxes.get(node.name);
  const by = scale(peak, now.total.local + now.total.remote);
  const middle = own.x + own.w / 2;
  const others = now.nodes.filter(({ name, state }) => state !== "here" && boxes.has(name));
  const paths = [];
  for (const side of [-1, 1]) {
    const rim = side < 0 ? own.x : own.x + own.w;
    const here = others
      .filter(({ name, sent }) => sent >= TRACE && (center(boxes.get(name)) < middle ? -1 : 1) === side)
      .sort((one, other) => side * (center(boxes.get(one.name)) - center(boxes.get(other.name))));
    let y = surface(own, now.crest) - 2;
    for (const { name, sent, level } of here) {
      const box = boxes.get(name);
      const width = thickness(sent, by);
      const [x1, y1] = [center(box), surface(box, level) + 3];
      y -= width / 2;
      const path = `M${n(inlet(own))} ${n(y)}H${n(rim)}${fall(rim, y, x1, y1, side, box)}`;
      paths.push({ key: `out ${name}`, kind: "out", flows: sent, width, path, x: x1, y: surface(box, now.crest) });
      y -= width / 2 + 1;
    }
  }
  for (const { name, received } of others.filter(({ received }) => received >= TRACE)) {
    const box = boxes.get(name);
    const width = thickness(received, by);
    const x0 = box.x + box.w * 0.18;
    const x1 = Math.min(own.x + own.w - 92, Math.max(own.x + 24, center(box)));
    const [y0, y1] = [surface(box, now.crest) - 2, own.y + own.h + 12];
    const path = `M${n(x0)} ${n(y0)}C${n(x0)} ${n((y0 + y1) / 2)} ${n(x1)} ${n((y0 + y1) / 2)} ${n(x1)} ${n(y1)}`;
    paths.push({ key: `in ${name}`, kind: "in", flows: received, width, path, x: x0, y: surface(box, now.crest) });
  }
  return paths;
};

const center = ({ x, w }) => x + w / 2;

/** A number in a path. */
const n = (number) => number.toFixed(1);

/** Over the rim, and down. */
const fall = (x0, y0, x1, y1, side, box) => {
  const out = side * (x1 - x0);
  if (out >= 40)
    return `C${n(x0 + side * out * 0.75)} ${n(y0)} ${n(x1)} ${n(y0 + 24)} ${n(x1)} ${n(Math.min(y1 - 8, y0 + 110))}V${n(y1)}`;
  // The basin below is not beyond the rim: around the corner, and back.
  const knee = x0 + side * 46;
  const below = (box.y + y0) / 2 + 26;
  return `C${n(knee)} ${n(y0)} ${n(knee + side * 4)} ${n(below)} ${n((knee + x1) / 2)} ${n(below + 20)}S${n(x1)} ${n(box.y - 26)} ${n(x1)} ${n(y1)}`;
};
