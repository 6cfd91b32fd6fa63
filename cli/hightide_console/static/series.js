// Numbers over time: kept since a page was opened, as they come, and drawn. What a chart shows is
// also said in the table below it.
import { html, count, Table } from "./parts.js";

export const KEPT = 120;
const WIDTH = 1000;
const HEIGHT = 160;
const TOLD_EACH = 10; // the table has every so-many-th sample
const SOON_MS = 500;
const STILL_MS = 2500; // what stands still is sampled so often: its rate is 0

// The samples of several named totals, [{ at, values }], the newest last.
export class Series {
  constructor(of) {
    this.of = of;
    this.samples = [];
    this.source = undefined;
  }

  // `source`: what the values were taken from; drawing it once more brings no news.
  add(at, values, source) {
    const last = this.samples.at(-1);
    if (last && at - last.at < (source === this.source ? STILL_MS : SOON_MS)) return;
    this.source = source;
    this.samples = [...this.samples, { at, values }].slice(-KEPT);
  }

  // What a total rose by in each second; a total that fell began again.
  rates(name) {
    return this.samples.slice(1).map((sample, before) => {
      const last = this.samples[before];
      const rose = sample.values[name] - last.values[name];
      return { at: sample.at, value: (Math.max(rose, 0) * 1000) / (sample.at - last.at) };
    });
  }

  levels(name) {
    return this.samples.map(({ at, values }) => ({ at, value: values[name] }));
  }
}

const shown = (value) => (value === undefined ? "?" : value < 10 ? count(Math.round(value * 10) / 10) : count(Math.round(value)));

// A number above all of them, easy to read.
export function ceiling(most) {
  const step = 10 ** Math.floor(Math.log10(Math.max(most, 1)));
  return [1, 2, 5, 10].map((each) => each * step).find((each) => each >= most);
}

// `lines`: [[name, [{ at, value }]]].
export function Chart({ caption, lines }) {
  const points = lines.flatMap(([, each]) => each);
  if (lines.some(([, each]) => each.length < 2)) return html`<p class="quiet">${caption}: seen from now on …</p>`;
  const top = ceiling(Math.max(...points.map((each) => each.value)));
  const [from, to] = [Math.min(...points.map((each) => each.at)), Math.max(...points.map((each) => each.at))];
  const x = (at) => ((at - from) / Math.max(to - from, 1)) * WIDTH;
  const y = (value) => HEIGHT - (value / top) * HEIGHT;
  const told = lines[0][1].filter((_, at, all) => (all.length - 1 - at) % TOLD_EACH === 0).map((each) => each.at).reverse();
  return html`<figure class="chart">
    <svg viewBox=${`0 -6 ${WIDTH} ${HEIGHT + 12}`} preserveAspectRatio="none" role="img" aria-label=${`${caption}; the table below says the same`}>
      <line class="axis" x1="0" x2=${WIDTH} y1=${HEIGHT} y2=${HEIGHT} />
      ${lines.map(([name, each], at) => html`<polyline key=${name} class=${`series series-${at}`} data-name=${name}
        points=${each.map((point) => `${x(point.at).toFixed(1)},${y(point.value).toFixed(1)}`).join(" ")} />`)}
    </svg>
    <div class="scale"><span>${Math.round((to - from) / 1000)} s ago</span><span>up to ${count(top)}</span><span>now</span></div>
    <figcaption>
      ${lines.map(([name, each], at) => html`<span key=${name} class="legend"><span class=${`swatch series-${at}`}></span> ${name}: now ${shown(each.at(-1)?.value)}</span>`)}
      <details><summary>${caption}, as numbers</summary>
        <${Table} caption=${caption} columns=${["seconds ago", ...lines.map(([name]) => name)]}
          rows=${told.map((at) => ({ key: at, cells: [count(Math.round((to - at) / 1000)),
            ...lines.map(([, each]) => shown(each.find((point) => point.at === at)?.value))] }))} /></details>
    </figcaption></figure>`;
}
