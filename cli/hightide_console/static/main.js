// The door: which address shows which page, and what is loaded for it.
import { render } from "./vendor/preact.mjs";
import { store, changed, ui, ask, begin, watch, unwatch, onChange } from "./store.js";
import { html } from "./parts.js";
import { Overview, Brokers, Topics, Topic, Quorum, Groups, Group } from "./pages.js";
import { Access, load as loadAccess } from "./access.js";
import { Messages, load as loadMessages } from "./records.js";
import { Lab, Lesson, load as loadLesson } from "./lab.js";
import { Timeline, load } from "./timeline.js";

const STALE_MS = 3000;
const AGAIN_MS = 2000;
const SECOND_MS = 1000;
const SECURE = "hightide up --secure";
const MENU = [["/", "Overview"], ["/topics", "Topics"], ["/brokers", "Brokers"], ["/groups", "Groups"], ["/quorum", "Quorum"], ["/access", "Access"], ["/lab", "Lab"]];

function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name; // typed by hand
  }
}

function place() {
  const [, page = "", name = "", number = "0"] = (location.hash.slice(1) || "/").split("/");
  return { page, name: decoded(name), number: Number(number) || 0 };
}

function Page() {
  const { page, name, number } = place();
  switch (page) {
    case "topics": return name ? html`<${Topic} name=${name} number=${number} />` : html`<${Topics} />`;
    case "brokers": return html`<h1>Brokers</h1><${Brokers} />`;
    case "groups": return name ? html`<${Group} name=${name} />` : html`<${Groups} />`;
    case "quorum": return html`<${Quorum} />`;
    case "messages": return html`<${Messages} name=${name} number=${number} />`;
    case "access": return html`<${Access} />`;
    case "lab": return name ? html`<${Lesson} name=${name} />` : html`<${Lab} />`;
    case "timeline": return html`<${Timeline} name=${name} number=${number} />`;
    default: return html`<${Overview} />`;
  }
}

function SignIn() {
  const go = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    try {
      changed({ session: await ask("/api/sign-in", { user: form.get("user"), password: form.get("password") }) });
      arrive();
    } catch (error) {
      ui({ error: error.message });
    }
  };
  return html`<main class="door"><h1>hightide</h1>
    <form onSubmit=${go}>
      <label>User <input name="user" autocomplete="username" required /></label>
      <label>Password <input name="password" type="password" autocomplete="current-password" required /></label>
      <button>Sign in</button>
    </form>
    ${store.ui.error && html`<p class="bad" role="alert">${store.ui.error}</p>`}
    <p class="quiet">With the name and password that the cluster knows you by.</p></main>`;
}

// Whoever comes is let in: a warning, or a remark where only this machine may come.
function Open({ open }) {
  return html`<p class=${open.calm ? "quiet" : "bad"} role="note">${open.told} <code>${SECURE}</code>.</p>`;
}

function App() {
  const { session, cluster } = store;
  if (session === null) return html`<p class="quiet">…</p>`;
  if (session.sign_in) return html`<${SignIn} />`;
  if (session.error) return html`<main><p class="bad" role="alert">${session.error}</p></main>`;
  const here = `/${place().page}`;
  const isStale = store.link !== "live" || (cluster && Date.now() - store.at > 60_000);
  return html`<a class="skip" href="#content" onClick=${(e) => { e.preventDefault(); document.getElementById("content").focus(); }}>To the content</a>
    <header><a class="brand" href="#/">hightide</a>
      <nav aria-label="pages">${MENU.map(([path, title]) => html`
        <a key=${path} href=${`#${path}`} aria-current=${here === path ? "page" : null}>${title}</a>`)}</nav>
      <span class=${`link link-${store.link}`} role="status">${store.link === "live" ? "live" : "no connection: this is old"}</span>
      ${session.users && html`<span class="quiet">${session.user} <button class="plain" onClick=${leave}>Sign out</button></span>`}
    </header>
    <main id="content" tabindex="-1" class=${isStale ? "stale-page" : ""}>
      ${cluster?.error && html`<p class="bad" role="alert">${cluster.error}</p>`}
      ${cluster?.open && !cluster.open.calm && html`<${Open} open=${cluster.open} />`}
      ${cluster?.brokers ? html`<${Page} />` : html`<p class="quiet">looking at the cluster …</p>`}
    </main>
    ${cluster?.open?.calm && html`<footer><${Open} open=${cluster.open} /></footer>`}`;
}

async function leave() {
  unwatch();
  await ask("/api/sign-out", {}).catch(() => {});
  changed({ session: { sign_in: true }, cluster: null, topic: null, events: [] });
}

// What a page needs beside the stream.
async function fetchMore() {
  const { page, name } = place();
  if (page !== "groups" || !store.session || store.session.sign_in) return;
  try {
    if (name) ui({ group: await ask(`/api/group?group=${encodeURIComponent(name)}`), error: "" });
    else ui({ groups: (await ask("/api/groups")).groups, error: "" });
  } catch (error) {
    ui({ error: error.message });
  }
}

function arrive() {
  const { page, name, number } = place();
  store.series = null;
  Object.assign(store.ui, { found: null, access: null, planned: null, changeError: "", verdict: null, group: null, moves: null, moved: false, error: "", tail: false });
  if (store.session && !store.session.sign_in && !store.session.error) {
    watch(page === "topics" ? name : "");
    if (page === "timeline") load(name, number);
    if (page === "lab") loadLesson(name);
    if (page === "access") loadAccess();
    if (page === "messages") loadMessages(name, number);
    fetchMore();
  }
  changed({});
}

onChange(() => render(html`<${App} />`, document.getElementById("page")));
addEventListener("hashchange", () => {
  arrive();
  document.getElementById("content")?.focus({ preventScroll: true });
  scrollTo(0, 0);
});
setInterval(fetchMore, AGAIN_MS);
setInterval(() => store.link === "live" && store.series && changed({}), SECOND_MS); // time goes on where nothing happens
setInterval(() => store.link === "live" && Date.now() - store.at > STALE_MS && changed({}), STALE_MS);
document.getElementById("page").textContent = "";
await begin();
arrive();
