/** Requests to the server that shows the runs. */

export async function get(path, signal) {
  const answer = await fetch(path, { signal, headers: { accept: "application/json" } });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(reason(body) || `the server answered ${answer.status}`);
  return body;
}

export async function getPicture(path, signal) {
  const answer = await fetch(path, { signal });
  if (!answer.ok) throw new Error(reason(await answer.json().catch(() => ({}))) || "the picture cannot be read");
  return answer.blob();
}

function reason(body) {
  return typeof body.error === "string" ? body.error : body.error?.message;
}

export const pictureAddress = (id, number, version = "") => `api/runs/${encodeURIComponent(id)}/pictures/${number}${version ? `?v=${version}` : ""}`;

/** Follows the events of a run: `poll` fetches what was appended since the last time and hands it on. */
export class Follower {
  constructor(id, { onReset, onEvents }) {
    Object.assign(this, { id, onReset, onEvents, after: 0, stream: "", damaged: 0, about: null });
  }

  async poll(signal) {
    for (let isBehind = true; isBehind; ) {
      const read = await get(`api/runs/${encodeURIComponent(this.id)}/events?after=${this.after}`, signal);
      const isReplaced = this.stream !== "" && read.stream !== this.stream;
      if (this.after > 0 && (isReplaced || read.start !== this.after)) {
        Object.assign(this, { after: 0, stream: "", damaged: 0 });
        this.onReset();
        if (read.start !== 0) continue;
      }
      this.after = read.next;
      this.stream = read.stream;
      this.damaged += read.damaged;
      this.about = read.about;
      if (read.events.length) this.onEvents(read.events);
      isBehind = read.is_behind;
    }
    return this.about;
  }
}

/** Calls a function again and again until the signal is aborted; not while the page is hidden, less often on errors. */
export async function repeat(milliseconds, signal, action) {
  let pause = milliseconds;
  while (!signal.aborted) {
    if (!document.hidden) {
      try {
        if ((await action()) === "stop") return;
        pause = milliseconds;
        showError("");
      } catch (error) {
        if (signal.aborted) return;
        pause = Math.min(2 * pause, 60_000);
        showError(`${error.message}; trying again`);
      }
    }
    await new Promise((resume) => {
      const timer = setTimeout(resume, pause);
      signal.addEventListener("abort", () => (clearTimeout(timer), resume()), { once: true });
    });
  }
}

export function showError(text) {
  const place = document.getElementById("error");
  place.hidden = !text;
  place.textContent = text;
}
