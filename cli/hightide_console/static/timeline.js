// The timeline: what happened to a partition, with a slider that plays its lanes again.
import { store, ui, ask } from "./store.js";
import { html, time, word, Command } from "./parts.js";
import { Lanes } from "./lanes.js";

const STEP_MS = 400;
let playing = 0;

export async function load(name, number) {
  try {
    const { frames, untraced } = await ask(`/api/timeline?topic=${encodeURIComponent(name)}&partition=${number}`);
    ui({ frames, framesOf: `${name}-${number}`, frame: Math.max(frames.length - 1, 0), error: untraced });
  } catch (error) {
    ui({ frames: [], framesOf: `${name}-${number}`, error: error.message });
  }
}

async function play() {
  const mine = ++playing;
  if (store.ui.frame >= store.ui.frames.length - 1) ui({ frame: 0 });
  ui({ plays: true });
  while (mine === playing && store.ui.frame < store.ui.frames.length - 1) {
    await new Promise((resume) => setTimeout(resume, STEP_MS));
    if (mine === playing) ui({ frame: store.ui.frame + 1 });
  }
  if (mine === playing) ui({ plays: false });
}

function pause() {
  playing += 1;
  ui({ plays: false });
}

function save(name, text, type) {
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(new Blob([text], { type }));
  anchor.download = name;
  anchor.click();
  URL.revokeObjectURL(anchor.href);
}

function savePicture(name) {
  const picture = document.querySelector(".lanes svg").cloneNode(true);
  picture.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules].map((rule) => rule.cssText));
  const style = document.createElementNS("http://www.w3.org/2000/svg", "style");
  style.textContent = rules.filter((rule) => /epoch|mark|lane|axis|retired|notch|:root/.test(rule)).join("\n");
  picture.prepend(style);
  save(`${name}.svg`, picture.outerHTML, "image/svg+xml");
}

export function Timeline({ name, number }) {
  const title = `${name}-${number}`;
  const { frames, framesOf, frame = 0, plays, error } = store.ui;
  const known = framesOf === title && frames ? frames : [];
  const now = known[frame];
  const to = (at) => () => { pause(); ui({ frame: Math.min(Math.max(at, 0), known.length - 1) }); };
  return html`<h1><a href=${`#/topics/${encodeURIComponent(name)}/${number}`}>${title}</a>: timeline</h1>
    ${error && html`<p class="bad" role="alert">${error}</p>`}
    ${!now ? html`<p class="quiet">nothing is kept of it yet</p>` : html`
      <div class="player">
        <button onClick=${to(frame - 1)} disabled=${frame === 0}>Back</button>
        <button onClick=${plays ? pause : play}>${plays ? "Pause" : "Play"}</button>
        <button onClick=${to(frame + 1)} disabled=${frame >= known.length - 1}>Step</button>
        <input type="range" min="0" max=${known.length - 1} value=${frame} aria-label="event"
          aria-valuetext=${now.text} onInput=${(e) => to(Number(e.target.value))()} />
        <span class="quiet">${frame + 1} of ${known.length}</span>
      </div>
      <p class="now" role="status"><time>${time(now.ms)} UTC</time> ${now.text}</p>
      <${Lanes} name=${title} partition=${now} watermarkNote=${false} />
      <ol class="events" start="1">${known.slice(Math.max(frame - 8, 0), frame + 9).map((each, at) => {
        const index = Math.max(frame - 8, 0) + at;
        return html`<li key=${index} class=${index === frame ? "here" : ""}>
          <button class="plain" onClick=${to(index)}><time>${time(each.ms)}</time> ${each.text}</button></li>`;
      })}</ol>
      <p><button onClick=${() => load(name, number)}>Look again</button>
        <button onClick=${() => savePicture(title)}>Save as SVG</button>
        <button onClick=${() => save(`${title}.json`, JSON.stringify(known, null, 1), "application/json")}>Save as JSON</button></p>`}
    <${Command} line=${`hightide trace replay --topic ${word(name)}`} />`;
}
