// The last ten minutes as the agent told them, and what came since.

const MEASURES = ["level", "spill", "flows", "failures"];

const empty = () => Object.fromEntries(MEASURES.map((measure) => [measure, []]));

export class Past {
  /** Seconds from one point to the next. */
  period = 2;
  /** Points that are kept. */
  length = 300;
  /** By name. */
  nodes = new Map();
  /** Of the service that is followed; null if there is none. */
  service = null;

  /** Begins with what the agent remembers. */
  reset({ period, length, nodes, service }) {
    this.period = period;
    this.length = length;
    this.nodes = new Map(Object.entries(nodes));
    this.service = service;
    this.fresh = true;
  }

  /** Adds the newest point of each node. */
  add(now) {
    // The first sample is the last one of the past.
    if (this.fresh) {
      this.fresh = false;
      this.freshService = true;
      return;
    }
    this.freshService = false;
    const told = new Map(now.nodes.map((node) => [node.name, node.point]));
    for (const name of told.keys()) {
      if (!this.nodes.has(name)) this.nodes.set(name, empty());
    }
    for (const [name, series] of this.nodes) this.#push(series, told.get(name));
  }

  /** Adds the newest point of the service. */
  addService(point) {
    if (this.freshService || !point) return;
    this.service ??= empty();
    this.#push(this.service, point);
  }

  #push(series, point) {
    MEASURES.forEach((measure, index) => {
      const values = series[measure];
      values.push(point ? point[index] : null);
      if (values.length > this.length) values.shift();
    });
  }

  /** Points that charts have room for: whole minutes, as many as there are of the agent that tells. */
  get shown() {
    const minute = 60 / this.period;
    const longest = Math.max(0, ...[...this.nodes.values()].map(({ level }) => level.length));
    return Math.min(this.length, Math.max(1, Math.ceil(longest / minute)) * minute);
  }

  /** The most that a node had to do within the time that is remembered, in new flows per second. */
  peak(node) {
    return Math.max(0, ...(this.nodes.get(node)?.flows ?? []).map((flows) => flows ?? 0));
  }
}
