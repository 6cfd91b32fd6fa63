// What the pages show, and how it is kept fresh. One object, replaced piece by piece; `changed`
// draws the page again.

import { Series } from "./series.js";

export const store = {
  session: null, // null: not asked yet
  cluster: null,
  topic: null, // the one whose page is open
  untraced: "",
  events: [], // what happened, the newest last
  life: "", // whose numbers they have
  at: 0, // when the state came
  link: "connecting", // connecting, live or lost
  series: null, // what the open page shows over time
  ui: {}, // what is typed and chosen on the pages
};

const EVENTS_KEPT = 2000;
const RARE_KEPT = 300; // of the quorum, and of the topic that is open: whatever else happens
const AGAIN_MS = 2000;
let draw = () => {};
let source = null;
let watchedTopic = null;

export function onChange(redraw) {
  draw = redraw;
}

export function changed(patch) {
  Object.assign(store, patch);
  draw();
}

export function ui(patch) {
  Object.assign(store.ui, patch);
  draw();
}

export async function ask(path, body) {
  const options = body === undefined ? {} : {
    method: "POST",
    headers: { "content-type": "application/json", "x-hightide-token": store.session?.token ?? "" },
    body: JSON.stringify(body),
  };
  const answer = await fetch(path, options);
  const said = await answer.json().catch(() => ({ error: `${answer.status}` }));
  if (answer.status === 401 && path !== "/api/sign-in") begin(); // the session is over
  if (!answer.ok) throw new Error(said.error ?? `${answer.status}`);
  return said;
}

export async function begin() {
  try {
    changed({ session: await ask("/api/session") });
  } catch (error) {
    changed({ session: { sign_in: false, error: error.message } });
  }
}

// Add to what a page shows over time; another page begins anew.
export function sample(of, source, values) {
  if (store.series?.of !== of) store.series = new Series(of);
  store.series.add(Date.now(), values, source);
  return store.series;
}

export const isOfQuorum = (event) => event.kind.startsWith("quorum") || event.kind === "voters_changed";

// Those that are kept, of events in their order.
export function newest(all, topic) {
  const older = all.slice(0, -EVENTS_KEPT);
  const rare = new Set([isOfQuorum, (event) => topic && event.topic === topic].flatMap((is) => older.filter(is).slice(-RARE_KEPT)));
  return [...older.filter((event) => rare.has(event)), ...all.slice(-EVENTS_KEPT)];
}

// One stream for the whole page: the cluster, the topic that is open, and what happens.
export function watch(topic) {
  if (source !== null && source.readyState !== EventSource.CLOSED && topic === watchedTopic) return;
  source?.close();
  watchedTopic = topic;
  source = new EventSource(`/api/stream?topic=${encodeURIComponent(topic)}`);
  source.addEventListener("state", (event) => {
    changed({ ...JSON.parse(event.data), at: Date.now(), link: "live" });
  });
  source.addEventListener("trace", (event) => {
    // Another page's first events may be older than what is here; another console numbers anew.
    const life = event.lastEventId.split(".")[0];
    const kept = store.life === life ? store.events : [];
    const all = new Map([...kept, ...JSON.parse(event.data)].map((each) => [each.seen, each]));
    changed({ life, events: newest([...all.values()].sort((a, b) => a.seen - b.seen), topic) });
  });
  source.onopen = () => changed({ link: "live" });
  const mine = source;
  source.onerror = () => {
    changed({ link: "lost" });
    // Refused, not only cut off: the session may be over, or another console be here now.
    if (mine.readyState === EventSource.CLOSED) setTimeout(() => mine === source && again(topic), AGAIN_MS);
  };
}

async function again(topic) {
  try {
    const session = await ask("/api/session");
    changed({ session });
    if (session.sign_in) unwatch();
    else watch(topic);
  } catch {
    watch(topic);
  }
}

export function unwatch() {
  source?.close();
  source = null;
}
