// Users, what they may do, and how much. A change is said in words first, and made by a second press.
import { store, ui, ask } from "./store.js";
import { html, count, Command, Table } from "./parts.js";

const OPERATIONS = ["ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE"];
const RESOURCES = ["topic", "group", "cluster"];
const KEYS = ["producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate", "connection_creation_rate"];

export async function load() {
  try {
    ui({ access: await ask("/api/access"), error: "" });
  } catch (error) {
    ui({ error: error.message });
  }
}

// What is asked for, without what is secret of it: that stays in its form.
async function preview(change) {
  try {
    ui({ planned: { change, ...(await ask("/api/access/change", { ...change, preview: true })) }, changeError: "" });
  } catch (error) {
    ui({ planned: null, changeError: error.message });
  }
}

async function make(event) {
  event.preventDefault();
  const { change } = store.ui.planned;
  const secret = change.what === "password" ? { password: new FormData(event.target).get("password") } : {};
  try {
    ui({ planned: { change, ...(await ask("/api/access/change", { ...change, ...secret, preview: false })) }, changeError: "" });
    await load();
  } catch (error) {
    ui({ changeError: error.message });
  }
}

function Planned() {
  const { planned, changeError } = store.ui;
  return html`<div aria-live="polite">
    ${changeError && html`<p class="bad" role="alert">${changeError}</p>`}
    ${planned && html`<h2>${planned.done ? "It is done" : "What would change"}</h2>
      <ul>${planned.told.map((each) => html`<li key=${each}>${each}</li>`)}</ul>
      ${!planned.done && html`<form onSubmit=${make}>
        ${planned.change.what === "password" && html`<label>New password
          <input name="password" type="password" autocomplete="new-password" required /></label>`}
        <button class="danger">Do it</button>
        <button type="button" onClick=${() => ui({ planned: null })}>Leave it</button></form>`}
      <${Command} line=${planned.command} />`}</div>`;
}

const may = () => store.session.changes;
const button = (change, label, text) => may()
  ? html`<button class="plain" aria-label=${label} onClick=${() => preview(change)}>${text}</button>` : "";
const fields = (event) => {
  event.preventDefault();
  return Object.fromEntries([...new FormData(event.target)].map(([name, value]) => [name, value.trim()]));
};
const choice = (name, label, options) => html`<label>${label} <select name=${name}>${
  options.map((each) => html`<option key=${each}>${each}</option>`)}</select></label>`;
const missing = (why) => why && html`<p class="quiet">${why}</p>`;

export function Access() {
  const { access } = store.ui;
  if (!access) return html`<h1>Users and permissions</h1><p class="quiet">${store.ui.error || "looking …"}</p>`;
  return html`<h1>Users and permissions</h1>
    <${Planned} />
    <h2>Users</h2>${missing(access.why.users) || html`<${Users} users=${access.users} />`}
    <h2>Rules</h2>${missing(access.why.rules) || html`<${Rules} rules=${access.rules} /><${Explain} />`}
    <h2>Quotas</h2>${missing(access.why.quotas) || html`<${Quotas} quotas=${access.quotas} />`}`;
}

function Users({ users }) {
  return html`<${Table} caption="Users" titled empty="nobody has a password" columns=${["user", "logs in by", ...(may() ? [""] : [])]}
      rows=${users.map(({ user, mechanisms }) => ({
        key: user, cells: [user, mechanisms.join(", "), ...(may() ? [html`${
          button({ what: "password", user }, `Another password for ${user}`, "another password")} · ${
          button({ what: "delete-user", user }, `Delete ${user}`, "delete")}`] : [])],
      }))} />
    ${may() && html`<form onSubmit=${(event) => preview({ what: "password", ...fields(event) })}>
      <label>New user <input name="user" required autocomplete="off" /></label><button>Preview</button></form>`}
    <${Command} line="hightide users list" />`;
}

function Rules({ rules }) {
  const text = (rule) => `${rule.principal} ${rule.permission === "DENY" ? "may not" : "may"} ${rule.operation} ${rule.resource} ${rule.name}`;
  return html`<${Table} caption="Rules" titled empty="there is no rule"
      columns=${["who", "may", "what", "to", "from", ...(may() ? [""] : [])]}
      rows=${rules.map((rule) => ({
        key: JSON.stringify(rule), bad: rule.permission === "DENY",
        cells: [rule.principal, rule.permission === "DENY" ? "may not" : "may", rule.operation,
          `${rule.resource} ${rule.name}${rule.pattern === "PREFIXED" ? "… (all that begin so)" : ""}`, rule.host === "*" ? "anywhere" : rule.host,
          ...(may() ? [button({ what: "delete-rule", ...rule }, `Remove: ${text(rule)}`, "remove")] : [])],
      }))} />
    ${may() && html`<form onSubmit=${(event) => {
        const said = fields(event);
        preview({ what: "add-rule", ...said, principal: `User:${said.user}`, host: said.host || "*", name: said.resource === "cluster" ? "cluster" : said.name });
      }}>
      <label>User <input name="user" required autocomplete="off" /></label>
      ${choice("permission", "Is", ["ALLOW", "DENY"])}${choice("operation", "To", OPERATIONS)}${choice("resource", "Of", RESOURCES)}
      <label>Called <input name="name" defaultValue="*" autocomplete="off" /></label>${choice("pattern", "Read as", ["LITERAL", "PREFIXED"])}
      <label>From <input name="host" placeholder="anywhere" autocomplete="off" /></label><button>Preview</button></form>`}
    <${Command} line="hightide acls list" />`;
}

function Explain() {
  const { verdict } = store.ui;
  const go = async (event) => {
    const said = fields(event);
    const asked = new URLSearchParams({ ...said, principal: `User:${said.user}`, name: said.resource === "cluster" ? "cluster" : said.name });
    try {
      ui({ verdict: await ask(`/api/access/explain?${asked}`) });
    } catch (error) {
      ui({ verdict: { reason: error.message } });
    }
  };
  return html`<h2>Who may what</h2><form onSubmit=${go}>
      <label>May <input name="user" required autocomplete="off" /></label>${choice("operation", "do", OPERATIONS)}${choice("resource", "to", RESOURCES)}
      <label>called <input name="name" autocomplete="off" /></label><button>Ask</button></form>
    <p role="status">${verdict && html`<strong>${verdict.allowed === undefined ? "?" : verdict.allowed ? "Yes" : "No"}</strong>: ${verdict.reason}${verdict.rule && ` (${verdict.rule})`}`}</p>`;
}

function Quotas({ quotas }) {
  const whose = (each) => ["user", "client_id", "ip"].filter((name) => each[name]).map((name) => `${name.replace("_", " ")} ${each[name]}`).join(", ");
  return html`<${Table} caption="Quotas" titled empty="nobody is limited" columns=${["whose", "what", "a second", ...(may() ? [""] : [])]}
      rows=${quotas.map((each) => ({
        key: `${whose(each)} ${each.key}`, cells: [whose(each), each.key, count(each.value), ...(may() ? [
          button({ what: "quota", ...each, value: null }, `Remove ${each.key} of ${whose(each)}`, "remove")] : [])],
      }))} />
    ${may() && html`<form onSubmit=${(event) => {
        const { kind, holder, key, value } = fields(event);
        preview({ what: "quota", key, value: Number(value), [kind]: holder });
      }}>
      ${choice("kind", "Of", ["user", "client_id", "ip"])}<label>Called <input name="holder" required autocomplete="off" /></label>
      ${choice("key", "At most", KEYS)}<label>A second <input name="value" type="number" min="1" required /></label><button>Preview</button></form>`}
    <${Command} line="hightide quotas list" />`;
}
