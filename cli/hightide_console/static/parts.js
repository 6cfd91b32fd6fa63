// Pieces that several pages use.
import { h } from "./vendor/preact.mjs";
import htm from "./vendor/htm.mjs";

export const html = htm.bind(h);

const COLOURS = 6;
export const epochClass = (epoch) => (epoch < 0 ? "epoch-none" : `epoch-${epoch % COLOURS}`);

export const count = (number) => (number < 0 ? "?" : number.toLocaleString("en"));

export const counted = (number, one) => `${count(number)} ${number === 1 ? one : `${one}s`}`;

export function bytes(number) {
  if (number < 0) return "?";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (number >= 1024 && at < units.length - 1) {
    number /= 1024;
    at += 1;
  }
  return `${number.toFixed(at && number < 100 ? 1 : 0)} ${units[at]}`;
}

// How long something lasts, by the two units that say most.
export function lasting(ms) {
  if (ms < 0) return "?";
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const units = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]];
  const first = units.findIndex(([, size]) => ms >= size);
  const whole = (at) => Math.floor((at ? ms % units[at - 1][1] : ms) / units[at][1]);
  return [first, first + 1].map((at) => `${whole(at)} ${units[at][0]}`).join(" ");
}

export const time = (ms) => new Date(ms).toISOString().slice(11, 23);
export const moment = (ms) => new Date(ms).toISOString().replace("T", " ").slice(0, 23);

export function Badge({ kind, children }) {
  return html`<span class=${`badge badge-${kind}`}>${children}</span>`;
}

// A name as a shell takes it for one word, whatever is in it: anybody may name a group.
export const word = (name) => (/^[\w@%+=:,./-]+$/.test(name) ? name : `'${name.replaceAll("'", `'"'"'`)}'`);

export function Command({ line }) {
  return html`<p class="command"><span class="quiet">the same by </span><code>${line}</code></p>`;
}

// A table with a caption; where a heading `titled` it already, only for those who hear it.
export function Table({ caption, columns, rows, empty = "nothing", titled = false }) {
  if (!rows.length) return html`<p class="quiet">${empty}</p>`;
  return html`<div class="wide" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <caption class=${titled ? "unseen" : ""}>${caption}</caption>
      <thead><tr>${columns.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row.key} class=${row.bad ? "bad" : ""}>
        ${row.cells.map((cell, at) => at === 0
          ? html`<th scope="row">${cell}</th>` : html`<td>${cell}</td>`)}
      </tr>`)}</tbody>
    </table>
  </div>`;
}

const ALIKE_MS = 1000;
const NEAR = 10;
const EACH_BY_ITSELF = new Set(["truncated", "replica_offline", "isr_refused"]);

// Rows of a list: what befell many partitions of a topic at once is told of the first of them.
export function gathered(events) {
  const rows = [];
  for (const each of events) {
    const same = each.topic && !EACH_BY_ITSELF.has(each.kind) && rows.slice(-NEAR).find(({ first }) => first.kind === each.kind && first.topic === each.topic
      && first.node === each.node && first.partition !== each.partition && each.ms - first.ms < ALIKE_MS);
    if (same) same.more += 1;
    else rows.push({ first: each, more: 0 });
  }
  return rows;
}

const TOPICS_APART = 3;

// What befell more topics than that at once, as when a broker dies: one row for all of them.
export function condensed(rows) {
  const bursts = [];
  for (const row of rows) {
    const { first } = row;
    const burst = first.topic && !EACH_BY_ITSELF.has(first.kind) && bursts.findLast(({ rows: [{ first: began }] }) => began.kind === first.kind
      && began.node === first.node && began.topic && first.ms - began.ms < ALIKE_MS);
    if (burst) burst.rows.push(row);
    else bursts.push({ rows: [row] });
  }
  const folded = bursts.flatMap(({ rows: alike }) => {
    const topics = new Set(alike.map(({ first }) => first.topic)).size;
    if (topics <= TOPICS_APART) return alike;
    return [{ first: alike[0].first, more: alike.reduce((sum, { more }) => sum + more + 1, -1), topics }];
  });
  return folded.sort((a, b) => a.first.ms - b.first.ms);
}

// The newest first by their own clocks: they are heard of node by node.
export function Events({ events, limit = 30 }) {
  if (!events.length) return html`<p class="quiet">nothing that is still known</p>`;
  const inTime = [...events].sort((a, b) => a.ms - b.ms);
  return html`<p class="quiet small">times are UTC</p>
    <ol class="events" reversed>${condensed(gathered(inTime)).slice(-limit).reverse().map(({ first: each, more, topics = 1 }) => html`
    <li key=${each.seen} class=${`event event-${each.kind}`}>
      <time>${time(each.ms)}</time> ${each.text}${more > 0 && html` <span class="quiet">and ${counted(more, "more partition")} of ${topics > 1 ? counted(topics, "topic") : each.topic}</span>`}
    </li>`)}</ol>`;
}
