// News of the agent: one stream of server-sent events, opened again when it ends, and closed while nobody looks.

/** Silence after which a stream is taken for dead: the agent says something every five seconds. */
const DEAD = 12_000;
/** The longest pause before another try, in milliseconds. */
const LONGEST = 15_000;

export class Stream {
  #handlers;
  #service = null;
  #source = null;
  #timer = null;
  #pause = 1000;

  /** `handlers`: past, now, service, each with what was told, and state with live, waiting, or lost. */
  constructor(handlers) {
    this.#handlers = handlers;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#close() : this.#open()));
  }

  /** Follows everything, and all about one service if that is not null. */
  follow(service) {
    this.#service = service;
    this.#pause = 1000;
    this.#open();
  }

  #open() {
    this.#close();
    if (document.hidden) return;
    const question = this.#service === null ? "" : `?service=${encodeURIComponent(this.#service)}`;
    const source = new EventSource(`events${question}`);
    this.#source = source;
    for (const name of ["past", "now", "service"]) {
      source.addEventListener(name, (event) => {
        this.#alive();
        this.#handlers[name](JSON.parse(event.data));
      });
    }
    // An answer that is no stream ends it for good, and a stream that ends may come again too soon: by our own clock.
    source.addEventListener("error", () => this.#again());
    this.#watch(DEAD);
  }

  #close() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }

  #alive() {
    this.#pause = 1000;
    this.#handlers.state("live");
    this.#watch(DEAD);
  }

  #watch(patience) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#again(), patience);
  }

  #again() {
    this.#close();
    this.#handlers.state(this.#pause > 4000 ? "lost" : "waiting");
    this.#timer = setTimeout(() => this.#open(), this.#pause);
    this.#pause = Math.min(this.#pause * 2, LONGEST);
  }
}
