// Messages: search by offset, time or key, and the live tail.
import { store, ui, ask } from "./store.js";
import { html, count, counted, moment, Command, Table } from "./parts.js";

const TAIL_MS = 1000;
const ROWS_MAX = 500;
const LIMIT = 50;

function shown(data) {
  if (data === null) return html`<span class="quiet">null</span>`;
  const cut = data.cut ? html` <span class="quiet">… ${counted(data.size, "byte")} in all</span>` : "";
  if (data.hex !== undefined) return html`<code class="hex">${data.hex}</code>${cut}`;
  return html`<code>${pretty(data.text)}</code>${cut}`;
}

function pretty(text) {
  if (!/^[[{]/.test(text)) return text;
  try {
    const parsed = JSON.parse(text);
    // What JavaScript would tell otherwise than it was written, as long numbers, stays as it is.
    const written = text.replace(/("(?:\\.|[^"\\])*")|\s+/g, "$1");
    return JSON.stringify(parsed) === written ? JSON.stringify(parsed, null, 2) : text;
  } catch {
    return text;
  }
}

async function search(topic, number, extra = {}) {
  const { from = "newest", key = "" } = store.ui;
  const asked = new URLSearchParams({ topic, partition: number, key, limit: LIMIT });
  if (extra.offset !== undefined) asked.set("offset", extra.offset);
  else if (/^\d+$/.test(from)) asked.set("offset", from);
  else if (from !== "newest" && from !== "oldest") asked.set("time_ms", Date.parse(from));
  else if (from === "oldest") asked.set("offset", 0);
  return ask(`/api/messages?${asked}`);
}

// What a terminal would be told for the same records.
export function asCommand(topic, number, from, tails) {
  const consume = `hightide consume ${topic} -p ${number}`;
  if (tails) return consume;
  if (from === "newest") return `${consume} -e --from -${LIMIT}`;
  const place = from === "oldest" ? "start" : /^\d+$/.test(from) ? from : `@${from}`;
  return `${consume} -e -c ${LIMIT} --from ${place}`;
}

let tailing = 0;

async function tail(topic, number, next) {
  const mine = ++tailing;
  while (mine === tailing && store.ui.tail && location.hash.includes("/messages/")) {
    try {
      const more = await search(topic, number, { offset: next });
      if (mine !== tailing) return;
      if (more.records.length) {
        const records = [...(store.ui.found?.records ?? []), ...more.records].slice(-ROWS_MAX);
        ui({ found: { ...more, records } });
      }
      next = more.next;
    } catch (error) {
      ui({ error: error.message, tail: false });
      return;
    }
    await new Promise((resume) => setTimeout(resume, TAIL_MS));
  }
}

export function Messages({ name, number }) {
  const { found, error, from = "newest", key = "", tail: tails = false } = store.ui;
  const go = async (event) => {
    event?.preventDefault();
    try {
      ui({ error: "", found: await search(name, number) });
    } catch (failure) {
      ui({ error: failure.message, found: null });
    }
  };
  const toggle = () => {
    ui({ tail: !tails });
    if (!tails) tail(name, number, found?.end ?? 0);
  };
  return html`<h1><a href=${`#/topics/${encodeURIComponent(name)}/${number}`}>${name}-${number}</a>: messages</h1>
    <form onSubmit=${go}>
      <label>From <input value=${from} onInput=${(e) => ui({ from: e.target.value })}
        title="newest, oldest, an offset, or a time as 2026-01-31T12:00Z" /></label>
      <label>Key has <input value=${key} onInput=${(e) => ui({ key: e.target.value })} /></label>
      <button>Search</button>
      <button type="button" aria-pressed=${tails} onClick=${toggle}>${tails ? "Stop the tail" : "Live tail"}</button>
    </form>
    ${error && html`<p class="bad" role="alert">${error}</p>`}
    ${found && html`<p class="quiet" role="status">${counted(found.records.length, "record")}; the log has ${count(found.start)} to ${count(found.end)}</p>
      <${Table} caption="Records" empty="no record is like that" columns=${["offset", "time", "key", "value", "headers"]}
        rows=${[...found.records].reverse().map((record) => ({ key: record.offset, cells: [
          count(record.offset), moment(record.timestamp), shown(record.key), shown(record.value),
          record.headers.map(([head, value]) => html`<div>${head}: ${shown(value)}</div>`),
        ] }))} />`}
    ${key === "" && html`<${Command} line=${asCommand(name, number, from, tails)} />`}`;
}
