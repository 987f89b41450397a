/** The state of the page and who is told when it changes.
 *
 * Views subscribe to the keys they show. Several changes in one go are reported once, before the next paint.
 */
export class Store {
  #state;
  #changed = new Set();
  #listeners = [];

  constructor(initial) {
    this.#state = initial;
  }

  get state() {
    return this.#state;
  }

  /** Change some values; unchanged ones are not reported. */
  set(changes) {
    const changed = Object.keys(changes).filter((key) => !Object.is(this.#state[key], changes[key]));
    if (!changed.length) return;
    this.#state = { ...this.#state, ...changes };
    if (!this.#changed.size) queueMicrotask(() => this.#report());
    for (const key of changed) this.#changed.add(key);
  }

  /** Call `listener(state)` after a change of any of the keys. */
  on(keys, listener) {
    this.#listeners.push({ keys, listener });
  }

  #report() {
    const changed = this.#changed;
    this.#changed = new Set();
    for (const { keys, listener } of this.#listeners) {
      if (keys.some((key) => changed.has(key))) listener(this.#state);
    }
  }
}
