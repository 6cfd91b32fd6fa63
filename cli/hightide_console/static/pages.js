// The pages that show what is now.
import { store, ui, ask, sample, isOfQuorum } from "./store.js";
import { html, count, counted, bytes, lasting, moment, word, Badge, Command, Table, Events } from "./parts.js";
import { Lanes, MiniLanes } from "./lanes.js";
import { Chart } from "./series.js";

const link = (path, text) => html`<a href=${`#${path}`}>${text}</a>`;
const topicPath = (name, partition) => `/topics/${encodeURIComponent(name)}${
  partition === undefined ? "" : `/${partition}`}`;

export function Overview() {
  const { cluster } = store;
  const serving = cluster.brokers.filter((broker) => !broker.fenced && !broker.silent);
  const sum = (name) => cluster.topics.reduce((total, topic) => total + topic[name], 0);
  const cards = [
    ["brokers that serve", serving.length, cluster.brokers.length, serving.length < cluster.brokers.length],
    ["active controller", cluster.controller < 0 ? "none" : `node ${cluster.controller}`, "one", cluster.controller < 0],
    ["partitions without a leader", sum("leaderless"), 0, sum("leaderless") > 0],
    ["under-replicated", sum("under_replicated"), 0, sum("under_replicated") > 0],
  ];
  return html`<h1>Cluster <code>${cluster.cluster_id}</code></h1>
    <ul class="cards">${cards.map(([name, value, normal, bad]) => html`
      <li key=${name} class=${bad ? "bad" : ""}><strong>${value}</strong> ${name}
        <span class="quiet">normal: ${normal}</span></li>`)}</ul>
    <h2>Brokers</h2><${Brokers} />
    <h2>What happened</h2>
    ${store.untraced ? html`<p class="quiet">${store.untraced}</p>` : html`<${Events} events=${store.events} />`}
    <${Command} line="hightide trace --follow" />`;
}

export function Brokers() {
  const { cluster } = store;
  return html`<${Table} caption="Brokers" titled
    columns=${["broker", "state", "address", "roles", "leads", "replicas", "on disk", "free"]}
    rows=${cluster.brokers.map((broker) => ({
      key: broker.id,
      bad: broker.fenced || broker.silent || broker.offline > 0,
      cells: [
        html`${broker.id === cluster.controller ? html`<span class="crown" title="active controller">♛</span> ` : ""}broker ${broker.id}`,
        broker.fenced ? "fenced" : broker.silent ? "does not answer" : broker.offline ? `${counted(broker.offline, "replica")} offline` : "serves",
        broker.address, broker.roles.join(", "), count(broker.leads), count(broker.replicas),
        bytes(broker.size_bytes), bytes(broker.free_bytes),
      ],
    }))} />
    <${Command} line="hightide brokers list" />`;
}

export function Topics() {
  const { topics } = store.cluster;
  const wanted = store.ui.filter ?? "";
  const shown = topics.filter((topic) => topic.topic.includes(wanted) && (store.ui.internal || !topic.internal));
  return html`<h1>Topics</h1>
    <form class="filter" onSubmit=${(event) => event.preventDefault()}>
      <label>Name has <input value=${wanted} onInput=${(e) => ui({ filter: e.target.value })} /></label>
      <label><input type="checkbox" checked=${store.ui.internal ?? false}
        onChange=${(e) => ui({ internal: e.target.checked })} /> the cluster's own, too</label>
    </form>
    <${Table} caption="Topics" titled empty="no topic has that in its name"
      columns=${["topic", "partitions", "replicas", "without a leader", "under-replicated"]}
      rows=${shown.map((topic) => ({
        key: topic.topic, bad: topic.leaderless > 0,
        cells: [link(topicPath(topic.topic), topic.topic), count(topic.partitions), count(topic.replicas),
          count(topic.leaderless), count(topic.under_replicated)],
      }))} />
    <${Command} line="hightide topics list" />`;
}

export function Topic({ name, number }) {
  const { topic } = store;
  if (topic === null || topic.topic !== name) {
    return html`<h1>Topic ${name}</h1><p class="quiet">${
      store.cluster.topics.some((each) => each.topic === name) ? "looking …" : "there is no such topic, or you may not see it"}</p>`;
  }
  const chosen = topic.partitions[number] ?? topic.partitions[0];
  const last = (field) => topic.partitions.reduce((sum, part) => sum + Math.max(0, ...part.lanes.map((lane) => lane[field])), 0);
  const series = sample(`topic ${name}`, topic, { written: last("log_end"), committed: last("high_watermark") });
  const events = store.events.filter((each) => each.topic === name && [chosen.partition, -1].includes(each.partition));
  return html`<h1>${link("/topics", "Topics")} / ${name}</h1>
    <p class="quiet">min.insync.replicas ${topic.min_isr} · id ${topic.topic_id} · ${
      link(`/messages/${encodeURIComponent(name)}/${chosen.partition}`, "messages")} · ${
      link(`/timeline/${encodeURIComponent(name)}/${chosen.partition}`, "timeline")}</p>
    <h2>Partition ${chosen.partition}: ${chosen.leader < 0 ? "nobody leads" : `broker ${chosen.leader} leads in epoch ${chosen.leader_epoch}`}</h2>
    <${Lanes} name=${`${name}-${chosen.partition}`} partition=${chosen} />
    <h2>Records a second, all partitions</h2>
    <${Chart} caption="Records a second" lines=${[["written", series.rates("written")], ["committed", series.rates("committed")]]} />
    ${topic.partitions.length > 1 && html`<h2>Partitions</h2>
      <${Table} caption="Partitions" titled
        columns=${["partition", "replicas", "leader", "ISR", "ELR", "watermark"]}
        rows=${topic.partitions.map((part) => ({
          key: part.partition, bad: part.leader < 0,
          cells: [link(topicPath(name, part.partition), `${name}-${part.partition}`), html`<${MiniLanes} partition=${part} />`,
            part.leader < 0 ? "nobody" : `broker ${part.leader}`, part.isr.join(", ") || "nobody", part.elr.join(", "),
            count(Math.max(...part.lanes.map((lane) => lane.high_watermark)))],
        }))} />`}
    <h2>What happened to it</h2><${Events} events=${events} limit=${15} />
    <${Command} line=${`hightide topics describe ${word(name)}`} />`;
}

export function Quorum() {
  const { quorum } = store.cluster;
  if (!quorum) return html`<h1>Quorum</h1><p class="bad">nobody leads it, or you may not ask</p>`;
  const events = store.events.filter(isOfQuorum);
  const led = quorum.leader < 0 ? `Nobody leads; epoch ${quorum.epoch} is the last that is known` : `Node ${quorum.leader} leads epoch ${quorum.epoch}`;
  return html`<h1>Quorum of controllers</h1>
    <p class=${quorum.leader < 0 ? "bad" : ""}>${led}; what is below offset ${count(quorum.high_watermark)} is committed.</p>
    <${Lanes} name="the metadata log" partition=${quorum} kind="node" />
    <h2>Elections and votes</h2><${Events} events=${events} />
    <${Command} line="hightide quorum status" />`;
}

export function Groups() {
  const { groups } = store.ui;
  return html`<h1>Groups</h1>
    <${Table} caption="Groups" titled empty="no group, or none that you may see" columns=${["group", "state", "members"]}
      rows=${(groups ?? []).map((group) => ({
        key: group.group, cells: [link(`/groups/${encodeURIComponent(group.group)}`, group.group), group.state, count(group.members)],
      }))} />
    <${Command} line="hightide groups list" />`;
}

export function Group({ name }) {
  const group = store.ui.group;
  if (!group || group.group !== name) return html`<h1>Group ${name}</h1><p class="quiet">${store.ui.error ?? "looking …"}</p>`;
  const lag = group.partitions.reduce((sum, part) => sum + Math.max(part.lag, 0), 0);
  const series = sample(`group ${name}`, group, { read: group.partitions.reduce((sum, part) => sum + Math.max(part.committed, 0), 0), lag });
  const behind = Math.max(-1, ...group.partitions.map((part) => part.behind_ms));
  return html`<h1>${link("/groups", "Groups")} / ${name}</h1>
    <p>${group.state}, generation ${group.generation}${group.protocol && `, shared out by ${group.protocol}`}; coordinated by broker ${group.coordinator}; ${group.partitions.some((part) => part.lag >= 0) ? `${counted(lag, "record")} behind` : "nothing is committed"}${behind > 0 && `, the oldest of them ${lasting(behind)} old`}.</p>
    <${Table} caption="Members" empty="it has no members"
      columns=${["member", "client", "from", "partitions"]}
      rows=${group.members.map((member) => ({
        key: member.member,
        cells: [html`${member.leads ? html`<span class="crown" title="leads">♛</span> ` : ""}${member.member}`, member.client, member.host,
          group.partitions.filter((part) => part.member === member.member).map((part) => `${part.topic}-${part.partition}`).join(", ") || "none"],
      }))} />
    <${Table} caption="Partitions" empty="it committed nothing, and reads nothing"
      columns=${["partition", "committed", "end", "records behind", "", "behind by", "read by"]}
      rows=${group.partitions.map((part) => ({
        key: `${part.topic}-${part.partition}`,
        cells: [link(topicPath(part.topic, part.partition), `${part.topic}-${part.partition}`), count(part.committed), count(part.end), count(part.lag),
          html`<meter min="0" max=${Math.max(part.end, 1)} value=${Math.max(part.lag, 0)} aria-label="behind"></meter>`, lasting(part.behind_ms), part.member || "nobody"],
      }))} />
    <h2>Rebalances</h2>
    <${Table} caption="Past rebalances" titled empty="none since this coordinator began" columns=${["when", "ended generation", "because"]}
      rows=${[...group.rebalances].reverse().map((each) => ({ key: each.ms, cells: [moment(each.ms), count(each.generation), each.cause] }))} />
    ${store.session.changes && html`<${Move} group=${group} />`}
    <h2>How far it is behind</h2><${Chart} caption="Records behind" lines=${[["records behind", series.levels("lag")]]} />
    <h2>How fast it reads</h2><${Chart} caption="Records read a second" lines=${[["read", series.rates("read")]]} />
    <${Command} line=${`hightide groups describe ${word(name)}`} />`;
}

function Move({ group }) {
  const { moves, to = "start", moveError } = store.ui;
  const body = (preview) => ({
    group: group.group, preview,
    partitions: group.partitions.map((part) => [part.topic, part.partition]),
    ...(to === "start" || to === "end" ? { to } : { offset: Number(to) }),
  });
  const move = (preview) => async (event) => {
    event.preventDefault();
    try {
      ui({ moves: (await ask("/api/group/move", body(preview))).moves, moveError: "", moved: !preview });
    } catch (error) {
      ui({ moves: null, moveError: error.message });
    }
  };
  return html`<h2>Have it go on elsewhere</h2>
    <form onSubmit=${move(true)}>
      <label>At <input value=${to} onInput=${(e) => ui({ to: e.target.value, moves: null })}
        pattern="start|end|[0-9]+" title="start, end or an offset" /></label>
      <button>Preview</button>
    </form>
    ${moveError && html`<p class="bad" role="alert">${moveError}</p>`}
    ${moves && html`<${Table} caption="What would change" columns=${["partition", "from", "to"]}
        rows=${moves.map((each) => ({ key: `${each.topic}-${each.partition}`,
          cells: [`${each.topic}-${each.partition}`, each.committed ?? "nothing", `${each.new}${each.limited ? " (the log's edge)" : ""}`] }))} />
      ${store.ui.moved ? html`<p role="status">It is done.</p>` : html`<button class="danger" onClick=${move(false)}>Move the group</button>`}`}
    <${Command} line=${`hightide groups seek ${word(group.group)} …`} />`;
}
