// A partition as lanes: one for each replica, all on one axis of offsets. What a lane shows is also
// said in the table below it: nothing is told by colour alone.
import { html, epochClass, count, Badge, Table } from "./parts.js";

const WIDTH = 1000;
const ROW = 34;
const BAR = 18;

// From where to where the axis goes.
export function axis(lanes) {
  const known = lanes.filter((lane) => lane.log_end >= 0);
  const end = Math.max(1, ...known.map((lane) => lane.log_end));
  const start = Math.min(end, ...known.map((lane) => Math.max(lane.log_start, 0)), end);
  // The last records matter most: a long history is cut where all replicas agree.
  const agreed = Math.min(end, ...known.map((lane) => Math.max(lane.high_watermark, 0)));
  const from = Math.max(start, Math.min(agreed, end) - Math.max((end - agreed) * 4, 200));
  return { from: Math.min(from, end - 1), to: end };
}

// [from, to, epoch] pieces of a lane by where its epochs began.
export function segments(lane, told, from) {
  const starts = lane.starts ?? told; // a replica that parted from the others may have its own
  // A tail of an old epoch, which the new leader does not have, is none of a newer one.
  const last = lane.starts ? Infinity : lane.last_epoch ?? lane.epoch;
  const marks = starts.filter(([epoch, offset]) => offset < lane.log_end && epoch <= last);
  const pieces = [];
  let at = Math.max(from, lane.log_start, 0);
  const first = marks.filter(([, offset]) => offset <= at).pop();
  let epoch = first ? first[0] : marks.length ? -1 : starts.length ? -1 : last;
  for (const [next, offset] of marks) {
    if (offset > at) {
      pieces.push([at, offset, epoch]);
      at = offset;
    }
    epoch = next;
  }
  if (at < lane.log_end) pieces.push([at, lane.log_end, epoch]);
  return pieces;
}

export function Lanes({ name, partition, watermarkNote = true, kind = "broker" }) {
  const { lanes, starts = [] } = partition;
  const { from, to } = axis(lanes);
  const x = (offset) => ((Math.min(Math.max(offset, from), to) - from) / (to - from)) * WIDTH;
  const height = lanes.length * ROW + 22;
  return html`<figure class="lanes">
    <div class="drawn" ref=${(drawn) => drawn?.style.setProperty("--lanes", lanes.length)}>
    <${Names} lanes=${lanes} kind=${kind} />
    <svg viewBox=${`0 0 ${WIDTH} ${height}`} preserveAspectRatio="none" role="img"
         aria-label=${`replicas of ${name}; the table below says the same`}>
      ${lanes.map((lane, row) => html`<${Row} key=${lane.broker} lane=${lane} y=${row * ROW + 8}
        x=${x} from=${from} starts=${starts} kind=${kind} />`)}
      <line x1="0" x2=${WIDTH} y1=${height - 16} y2=${height - 16} class="axis" />
    </svg>
    </div>
    <div class="scale"><span>${count(from)}</span><span>${count(to)}</span></div>
    <figcaption>
      ${watermarkNote && partition.why && html`<p class="why">Why is the watermark here? ${partition.why}.</p>`}
      <${LaneTable} name=${name} lanes=${lanes} kind=${kind} />
    </figcaption>
  </figure>`;
}

// Whose lane is whose, for the eye: the picture's own text would be stretched with it.
function Names({ lanes, kind }) {
  return html`<div class="names" aria-hidden="true">${lanes.map((lane) => html`
    <span key=${lane.broker} class=${`name${lane.stale || lane.error ? " bad" : ""}`}>
      ${lane.leads && html`<span class="crown">♛</span>`}${kind} ${lane.broker} <small class="quiet">${lane.badge}</small></span>`)}</div>`;
}

function Row({ lane, y, x, from, starts, kind }) {
  if (lane.log_end < 0) {
    return html`<rect x="0" y=${y} width="1000" height=${BAR} class="unknown" />`;
  }
  const state = lane.stale || lane.error ? " stale" : "";
  const mark = (offset, kind) => html`<line class=${`mark mark-${kind}`} x1=${x(offset)} x2=${x(offset)}
    y1=${y - 4} y2=${y + BAR + 4} />`;
  return html`<g class=${`lane${state}`} data-broker=${lane.broker} data-end=${lane.log_end}>
    <title>${`${kind} ${lane.broker}: ${lane.badge}${lane.leads ? ", leads" : ""}, epoch ${lane.epoch}, ${
      count(lane.high_watermark)} committed of ${count(lane.log_end)}${cutText(lane, ", ")}`}</title>
    ${segments(lane, starts, from).map(([a, b, epoch]) => html`<rect class=${epochClass(epoch)}
      data-epoch=${epoch} x=${x(a)} y=${y} width=${Math.max(x(b) - x(a), 1)} height=${BAR} />`)}
    ${lane.log_start > from && html`<rect class="retired" x="0" y=${y} width=${x(lane.log_start)}
      height=${BAR} />`}
    ${lane.cut?.[1] >= from && html`<path class="notch" data-from=${lane.cut[0]} data-to=${lane.cut[1]}
      d=${`M${x(lane.cut[1]) - 6} ${y - 7} h12 l-6 ${BAR / 2 + 7} z`} />`}
    ${mark(lane.high_watermark, "watermark")}
    ${lane.synced >= 0 && lane.synced < lane.log_end && mark(lane.synced, "synced")}
    ${mark(lane.log_end, "end")}
  </g>`;
}

// What of a lane was cut in this leader epoch, in words.
const cutText = (lane, before) => (lane.cut?.length > 0 ? `${before}cut from ${count(lane.cut[0])} to ${count(lane.cut[1])}` : "");

function LaneTable({ name, lanes, kind }) {
  // Nobody is ahead of its leader: a log that is longer than the leader's has parted from it.
  const end = lanes.find((lane) => lane.leads)?.log_end ?? Math.max(...lanes.map((lane) => lane.log_end));
  const told = lanes.some((lane) => lane.synced >= 0);
  const begins = lanes.some((lane) => lane.log_start >= 0); // some voters answer nodes alone
  return html`<${Table} caption=${`Replicas of ${name}`}
    columns=${[kind, "is", "epoch", ...(begins ? ["log start"] : []), "watermark", "log end", ...(told ? ["synced"] : []), "behind"]}
    rows=${lanes.map((lane) => ({
      key: lane.broker,
      bad: Boolean(lane.error) || lane.stale,
      cells: [
        html`${lane.leads ? html`<span class="crown" title="leads">♛</span> ` : ""}${kind} ${lane.broker}`,
        html`<${Badge} kind=${lane.badge}>${lane.badge}</${Badge}>
             ${lane.leads ? " leader" : ""}${lane.error ? ` ${lane.error}` : lane.stale ? " does not answer" : ""}${cutText(lane, " ")}`,
        html`<span class=${`swatch ${epochClass(lane.epoch)}`}></span> ${count(lane.epoch)}`,
        ...(begins ? [count(lane.log_start)] : []), count(lane.high_watermark), count(lane.log_end), ...(told ? [count(lane.synced)] : []),
        lane.log_end < 0 ? "?" : count(Math.max(end - lane.log_end, 0)),
      ],
    }))} />`;
}

// A line high: for tables of many partitions.
export function MiniLanes({ partition }) {
  const { from, to } = axis(partition.lanes);
  return html`<svg class="mini" viewBox="0 0 100 ${partition.lanes.length * 6}"
      preserveAspectRatio="none" aria-hidden="true">
    ${partition.lanes.map((lane, row) => html`<rect class=${`${epochClass(lane.epoch)}${lane.stale ? " stale" : ""}`}
      x="0" y=${row * 6} height="4" width=${Math.max(((lane.log_end - from) / (to - from)) * 100, 1)} />`)}
  </svg>`;
}
