// The lab: lessons played with real replicas, step by step, with what each of them says.
import { store, ui, ask } from "./store.js";
import { html, Command } from "./parts.js";
import { Lanes } from "./lanes.js";

export async function load(name) {
  try {
    if (name) ui({ lesson: await ask(`/api/lab?name=${encodeURIComponent(name)}`), at: 0, error: "" });
    else ui({ lessons: (await ask("/api/lab")).lessons, error: "" });
  } catch (error) {
    ui({ lesson: null, error: error.message });
  }
}

export function Lab() {
  return html`<h1>Lab</h1>
    <p>What can happen to replicated records, played with real replicas that are moved by hand: no cluster is touched.</p>
    <ul class="lessons">${(store.ui.lessons ?? []).map((one) => html`
      <li key=${one.name}><a href=${`#/lab/${one.name}`}>${one.title}</a></li>`)}</ul>
    <${Command} line="hightide lab list" />`;
}

export function Lesson({ name }) {
  const { lesson, at = 0, error } = store.ui;
  if (!lesson || lesson.name !== name) return html`<h1>Lab</h1><p class="quiet">${error || "playing it …"}</p>`;
  const now = lesson.frames[at];
  const to = (place) => () => ui({ at: Math.min(Math.max(place, 0), lesson.frames.length - 1) });
  return html`<h1><a href="#/lab">Lab</a> / ${lesson.title}</h1>
    <h2>${now.part}</h2>
    <div class="player">
      <button onClick=${to(at - 1)} disabled=${at === 0}>Back</button>
      <button onClick=${to(at + 1)} disabled=${at >= lesson.frames.length - 1}>Step</button>
      <input type="range" min="0" max=${lesson.frames.length - 1} value=${at} aria-label="step"
        aria-valuetext=${now.text || "the beginning"} onInput=${(e) => to(Number(e.target.value))()} />
      <span class="quiet">${at + 1} of ${lesson.frames.length}</span>
    </div>
    <div class="now" role="status"><p>${now.text || "Before anything happens."}</p>
      ${now.said.map((line) => html`<p class="said">${line}</p>`)}</div>
    <${Lanes} name="m-0" partition=${now} watermarkNote=${false} />
    <p class="quiet">${now.lanes.map((lane) => html`<span class="held">broker ${lane.broker}: ${lane.values.join(" ") || "nothing"}</span> `)}</p>
    <${Command} line=${`hightide lab run ${name}`} />`;
}
