"use strict";
// Line charts over steps, with bands and single points, drawn by uPlot.

// Okabe and Ito's colours, which people with any colour vision can tell apart.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d00", "#777777"];
const DASHES = [[], [9, 4], [2, 3], [9, 3, 2, 3], [5, 5]];
const BORDERS = ["solid", "dashed", "dotted", "double", "groove"];  // the same in the legend
const dark = matchMedia("(prefers-color-scheme: dark)");

class LineChart {
  // lines: [{label, x, y, low, high, points, colour, dash}]; low and high make a band, points draws no line. colour and
  // dash are numbers; lines without have a colour each.
  constructor(title, note = "", across = "step") {
    this.title = title;
    this.across = across;
    this.plot = element("div");
    this.figure = element("figure", { role: "group", "aria-label": title },
      element("figcaption", {}, title, note ? element("small", {}, ` ${note}`) : null), this.plot);
    this.chart = null;
    this.shape = "";
    new ResizeObserver(() => this.chart && this.resize()).observe(this.figure);
  }

  show(lines) {
    const drawn = lines.filter((line) => line.y.some((value) => value !== null && value !== undefined));
    this.figure.hidden = drawn.length === 0;
    if (this.figure.hidden) return;
    const tables = drawn.map((line) => line.low ? [line.x, line.y, line.low, line.high] : [line.x, line.y]);
    const data = tables.length === 1 ? tables[0] : uPlot.join(tables);
    const last = drawn.map((line) => `${line.label} ${number([...line.y].reverse().find((v) => v !== null))}`);
    this.plot.setAttribute("role", "img");
    this.plot.setAttribute("aria-label", `${this.title}: ${last.join(", ")}`);
    const shape = drawn.map((line) => `${line.label}${line.low ? "+" : ""}`).join("|");
    if (this.chart && shape === this.shape) {
      this.chart.setData(data);
      return;
    }
    this.shape = shape;
    if (this.chart) this.chart.destroy();
    this.chart = new uPlot(this.options(drawn), data, this.plot);
    this.resize();
  }

  resize() {
    this.chart.setSize({ width: Math.max(200, this.figure.clientWidth - 18), height: 220 });
  }

  options(lines) {
    const ink = dark.matches ? "#a4adb8" : "#57606a";
    const grid = { stroke: dark.matches ? "#2d333b" : "#e3e8ed", width: 1 };
    const series = [{ label: this.across }];
    const bands = [];
    const bars = [];
    lines.forEach((line, place) => {
      const colour = COLOURS[(line.colour ?? place) % COLOURS.length];
      const value = (_, given) => number(given);
      const pattern = (line.dash ?? 0) % DASHES.length;
      series.push({ label: line.label, stroke: colour, width: line.points ? 0 : 2, dash: DASHES[pattern], pattern, value, spanGaps: true,
        points: { show: line.points || line.x.length < 40, size: line.points ? 8 : 5, fill: colour } });
      if (line.low) {
        const first = series.length;
        const limit = { stroke: line.points ? "transparent" : colour + "55", width: 1, value, points: { show: false }, spanGaps: true, class: "limit" };
        series.push({ ...limit, label: `${line.label}, low` }, { ...limit, label: `${line.label}, high` });
        if (line.points) bars.push({ low: first, high: first + 1, colour });
        else bands.push({ series: [first + 1, first], fill: colour + "22" });
      }
    });
    const axis = { stroke: ink, grid, ticks: grid };
    const range = (_, low, high) => low === high ? [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2] : uPlot.rangeNum(low, high, 0.1, true);
    return { width: 400, height: 220, series, bands, scales: { x: { time: false }, y: { range } },
      hooks: { draw: [(chart) => bars.forEach((bar) => drawBars(chart, bar))] },
      legend: { markers: { dash: (chart, i) => BORDERS[chart.series[i].pattern ?? 0] } },
      cursor: { sync: { key: this.across } },
      axes: [{ ...axis, size: 34 }, { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => shortNumber(tick)) }] };
  }
}

// A vertical bar from `low` to `high` at each point.
function drawBars(chart, { low, high, colour }) {
  const drawing = chart.ctx;
  drawing.save();
  drawing.strokeStyle = colour;
  drawing.lineWidth = 2 * devicePixelRatio;
  chart.data[0].forEach((x, i) => {
    const [bottom, top] = [chart.data[low][i], chart.data[high][i]];
    if (bottom === null || bottom === undefined || top === null || top === undefined) return;
    const at = chart.valToPos(x, "x", true);
    drawing.beginPath();
    drawing.moveTo(at, chart.valToPos(bottom, "y", true));
    drawing.lineTo(at, chart.valToPos(top, "y", true));
    drawing.stroke();
  });
  drawing.restore();
}

function shortNumber(value) {
  const size = Math.abs(value);
  if (size >= 1e4 || (size !== 0 && size < 1e-3)) return value.toExponential(1);
  return String(Number(value.toPrecision(4)));
}
