// Messages: search by offset, time or key, and the live tail.
import { store, ui, ask } from "./store.js";
import { html, count, counted, moment, word, Command, Table } from "./parts.js";

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

// A time as it is typed, or as the page shows it: in UTC, unless it says otherwise.
export function timeOf(text) {
  const written = text.trim().replace(" ", "T");
  const zoned = !written.includes("T") || /(Z|[+-]\d\d:?\d\d)$/i.test(written);
  const ms = /^\d{4}-\d\d/.test(written) ? Date.parse(zoned ? written : `${written}Z`) : NaN; // it reads much into little
  if (Number.isNaN(ms)) throw new Error(`From is ${text}, expected newest, oldest, an offset, or a time as 2026-01-31 12:00`);
  return ms;
}

// `from` is what is typed, unless something else is to be looked for.
async function search(topic, number, from = store.ui.from ?? "newest") {
  const asked = new URLSearchParams({ topic, partition: number, key: store.ui.key ?? "", limit: LIMIT });
  if (/^\d+$/.test(from)) asked.set("offset", from);
  else if (from === "oldest") asked.set("offset", 0);
  else if (from !== "newest") asked.set("time_ms", timeOf(from));
  return ask(`/api/messages?${asked}`);
}

export async function load(name, number) {
  try {
    ui({ error: "", found: await search(name, number) });
  } catch (failure) {
    ui({ error: failure.message, found: null });
  }
}

function inWords(from) {
  try {
    return `@${new Date(timeOf(from)).toISOString()}`;
  } catch {
    return "@…"; // it is being typed
  }
}

// What a terminal would be told for the same records.
export function asCommand(topic, number, from, tails) {
  const consume = `hightide consume ${word(topic)} -p ${number}`;
  if (tails) return consume;
  if (from === "newest") return `${consume} -e --from -${LIMIT}`;
  const place = from === "oldest" ? "start" : /^\d+$/.test(from) ? from : inWords(from);
  return `${consume} -e -c ${LIMIT} --from ${place}`;
}

let tailing = 0;

async function tail(topic, number) {
  const mine = ++tailing;
  let next = "newest";
  ui({ found: null, error: "" });
  while (mine === tailing && store.ui.tail && location.hash.includes("/messages/")) {
    try {
      const more = await search(topic, number, next);
      if (mine !== tailing) return;
      if (more.records.length) {
        const records = [...(store.ui.found?.records ?? []), ...more.records].slice(-ROWS_MAX);
        ui({ found: { ...more, records } });
      }
      next = String(more.next);
    } catch (error) {
      ui({ error: error.message, tail: false });
      return;
    }
    await new Promise((resume) => setTimeout(resume, TAIL_MS));
  }
}

export function Messages({ name, number }) {
  const { found, error, from = "newest", key = "", tail: tails = false } = store.ui;
  const go = (event) => {
    event.preventDefault();
    ui({ tail: false });
    load(name, number);
  };
  const goOn = () => {
    ui({ from: String(found.next) });
    load(name, number);
  };
  const toggle = () => {
    ui({ tail: !tails });
    if (!tails) tail(name, number);
  };
  return html`<h1><a href=${`#/topics/${encodeURIComponent(name)}/${number}`}>${name}-${number}</a>: messages</h1>
    <form onSubmit=${go}>
      <label>From <input value=${from} onInput=${(e) => ui({ from: e.target.value })}
        aria-describedby="from-what" /></label>
      <label>Key has <input value=${key} onInput=${(e) => ui({ key: e.target.value })} /></label>
      <button>Search</button>
      <button type="button" aria-pressed=${tails} onClick=${toggle}>${tails ? "Stop the tail" : "Live tail"}</button>
    </form>
    <p id="from-what" class="quiet small">From newest, oldest, an offset, or a time (UTC) as 2026-01-31 12:00.</p>
    ${error && html`<p class="bad" role="alert">${error}</p>`}
    ${found && html`<p class="quiet" role="status">${counted(found.records.length, "record")};
        the log has offsets ${count(found.start)} to ${count(found.end)}${key !== "" && `; ${counted(found.scanned, "record")} looked at`}
        ${!tails && found.next < found.end && html` <button type="button" onClick=${goOn}>Go on from ${count(found.next)}</button>`}</p>
      <${Table} caption="Records" empty="no record is like that" columns=${["offset", "time", "key", "value", "headers"]}
        rows=${[...found.records].reverse().map((record) => ({ key: record.offset, cells: [
          count(record.offset), moment(record.timestamp), shown(record.key), shown(record.value),
          record.headers.map(([head, value]) => html`<div>${head}: ${shown(value)}</div>`),
        ] }))} />`}
    ${key === "" && html`<${Command} line=${asCommand(name, number, from, tails)} />`}`;
}
