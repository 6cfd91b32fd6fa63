// Numbers over time: kept since a page was opened, as they come, and drawn. What a chart shows is
// also said in the table below it.
import uPlot from "./vendor/uplot.mjs";
import { Component, createRef } from "./vendor/preact.mjs";
import { html, count, time, Table } from "./parts.js";

export const KEPT = 120;
const HEIGHT = 150;
const STROKES = ["--accent", "--epoch-1"];
const DASHES = [[], [6, 4]];
const TOLD_EACH = 10; // the table has every so-many-th sample
const SOON_MS = 500;
const TICKS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300]; // a time is told to the second
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

// `lines`: [[name, [{ at, value }]]], all of the same moments.
export function Chart({ caption, lines }) {
  if (lines.some(([, each]) => each.length < 2)) return html`<p class="quiet">${caption}: seen from now on …</p>`;
  const to = lines[0][1].at(-1).at;
  const told = lines[0][1].filter((_, at, all) => (all.length - 1 - at) % TOLD_EACH === 0).map((each) => each.at).reverse();
  return html`<figure class="chart">
    <${Plot} key=${caption} caption=${caption} lines=${lines} />
    <figcaption>
      ${lines.map(([name, each], at) => html`<span key=${name} class="legend"><span class=${`swatch series-${at}`}></span> ${name}: now ${shown(each.at(-1)?.value)}</span>`)}
      <details><summary>${caption}, as numbers</summary>
        <${Table} caption=${caption} columns=${["seconds ago", ...lines.map(([name]) => name)]}
          rows=${told.map((at) => ({ key: at, cells: [count(Math.round((to - at) / 1000)),
            ...lines.map(([, each]) => shown(each.find((point) => point.at === at)?.value))] }))} /></details>
    </figcaption></figure>`;
}

// What uPlot draws of it; the colours are the page's, also when they change to the dark ones.
class Plot extends Component {
  place = createRef();

  componentDidMount() {
    const { lines } = this.props;
    this.plot = new uPlot(options(lines.map(([name]) => name), this.place.current.clientWidth), columns(lines), this.place.current);
    this.sizes = new ResizeObserver(([{ contentRect }]) => this.plot.setSize({ width: contentRect.width, height: HEIGHT }));
    this.sizes.observe(this.place.current);
  }

  componentDidUpdate() {
    this.plot.setData(columns(this.props.lines));
  }

  componentWillUnmount() {
    this.sizes.disconnect();
    this.plot.destroy();
  }

  render({ caption }) {
    return html`<div class="plot" ref=${this.place} role="img" aria-label=${`${caption}; the table below says the same`} />`;
  }
}

// Seconds since 1970, and for each line its values.
const columns = (lines) => [lines[0][1].map(({ at }) => at / 1000), ...lines.map(([, each]) => each.map(({ value }) => value))];

const colour = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function options(names, width) {
  const ink = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    scales: { y: { range: (_, least, most) => [0, ceiling(most)] } },
    axes: [
      { ...ink, size: 30, incrs: TICKS_S, values: (_, ticks) => ticks.map((at) => time(at * 1000).slice(0, 8)) },
      { ...ink, size: 70, values: (_, ticks) => ticks.map((value) => count(value)) },
    ],
    series: [{}, ...names.map((label, at) => ({ label, stroke: colour(STROKES[at]), width: 2, dash: DASHES[at], points: { show: false } }))],
  };
}
