"use strict";
// What each process did when: lanes on one axis of time.

const SPAN_COLOURS = { train: "--busy", wait: "--wait", publish: "--publish", busy: "--busy", idle: "--wait", down: "--bad" };

// What one process did. It stays when news come, and so does what the keyboard has reached.
class Lane {
  constructor(process, detail) {
    this.process = process;
    this.detail = detail;
    this.label = element("span", { title: process }, process);
    this.canvas = element("canvas", { class: "lane", role: "img", tabindex: "0" });
    this.at = -1;
    this.canvas.addEventListener("pointermove", (event) => this.under(event.clientX));
    this.canvas.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move || !this.spans.length) return;
      event.preventDefault();
      this.tell(Math.max(0, Math.min(this.spans.length - 1, this.at + move)));
    });
  }

  show(spans, start, end) {
    this.spans = spans.filter((span) => span.end >= start && span.end > span.start);
    this.start = start;
    this.end = end;
    this.canvas.setAttribute("aria-label", `${this.process}: ${this.spans.length} spans; arrow keys tell of them`);
    this.draw();
  }

  draw() {
    const { canvas, start, end } = this;
    const width = canvas.clientWidth * devicePixelRatio || 1;
    const height = canvas.clientHeight * devicePixelRatio || 1;
    canvas.width = width;
    canvas.height = height;
    const drawing = canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    for (const span of this.spans) {
      const left = ((span.start - start) / (end - start)) * width;
      const right = ((span.end - start) / (end - start)) * width;
      if (right < 0 || left > width) continue;
      drawing.fillStyle = style.getPropertyValue(SPAN_COLOURS[span.what]);
      drawing.fillRect(left, 2, Math.max(1, right - left), height - 4);
    }
  }

  under(x) {
    const box = this.canvas.getBoundingClientRect();
    const time = this.start + ((x - box.left) / box.width) * (this.end - this.start);
    this.tell(this.spans.findIndex((span) => span.start <= time && time < span.end));
  }

  tell(index) {
    this.at = index;
    const span = this.spans[index];
    this.detail.textContent = span ? `${this.process}, ${clock(span.start)}, ${(span.end - span.start).toFixed(1)} s: ${span.said}` : "";
  }
}

const TRAINER_WORK = { wait: "waiting for groups", train: "training", publish: "publishing weights" };

// What engines and environment services did, by name, the engines first.
function serviceSpans(samples) {
  const services = new Map(samples.flatMap((sample) => Object.keys(sample.engines || {})).map((name) => [name, []]));
  samples.forEach((sample, i) => {
    const end = i + 1 < samples.length ? samples[i + 1].time : sample.time + 1;
    for (const [name, cause] of Object.entries(sample.idle || {})) {
      const engine = (sample.engines || {})[name];
      const work = engine ? "decoding" : "stepping";
      const how = engine ? `${engine.running} requests` : `${sample.environments[name].sessions} sessions`;
      if (!services.has(name)) services.set(name, []);
      services.get(name).push({ what: cause ? "idle" : "busy", doing: cause || work, said: cause || `${work}, ${how}`, start: sample.time, end: Math.min(end, sample.time + 10) });
    }
  });
  return services;
}

function share(spans) {
  const causes = new Map();
  let total = 0;
  for (const span of spans) {
    const seconds = span.end - span.start;
    total += seconds;
    causes.set(span.doing, (causes.get(span.doing) || 0) + seconds);
  }
  return [...causes].sort((a, b) => b[1] - a[1]).map(([cause, seconds]) => `${cause} ${Math.round((100 * seconds) / total)} %`).join(", ");
}

async function timelinePage(root, name) {
  const lanes = element("div", { class: "lanes" });
  const known = new Map();
  const times = element("span");
  const detail = element("p", { class: "node-detail", role: "status" });
  const summary = element("div");
  const minutes = element("select", { onchange: () => refresh() },
    [["1", "last minute"], ["5", "last 5 minutes"], ["30", "last 30 minutes"], ["0", "all"]].map(([value, label]) => element("option", { value, selected: value === "5" }, label)));
  const key = [["--busy", "training, decoding, stepping"], ["--wait", "waiting"], ["--publish", "publishing weights"], ["--bad", "down"]];
  const load = new LineChart("Load of the machine", "share of all cores, and of its memory", "second");
  const processes = new LineChart("Processor time by process", "cores", "second");
  const engines = new LineChart("Requests in the engines", "", "second");
  const groups = new LineChart("Groups", "", "second");
  root.replaceChildren(element("h1", {}, `${name}: timeline`), element("form", {}, element("label", {}, "shown", minutes)),
    element("ul", { class: "key" }, key.map(([colour, label]) => {
      const mark = element("i");
      mark.style.background = `var(${colour})`;
      return element("li", {}, mark, label);
    })), lanes, detail, summary, element("h2", {}, "Activity"), element("div", { class: "charts" }, engines.figure, groups.figure, load.figure, processes.figure));
  const refresh = async () => {
    const found = await source.timeline(name);
    const ends = [...found.trainer.map((span) => span.end), ...found.activity.map((sample) => sample.time)];
    if (!ends.length) {
      lanes.replaceChildren(element("p", {}, "No step and no activity has been recorded yet."));
      return found.state === "running";
    }
    const end = Math.max(...ends);
    const first = Math.min(...found.trainer.map((span) => span.start), ...found.activity.map((sample) => sample.time));
    const start = minutes.value === "0" ? first : Math.max(first, end - 60 * Number(minutes.value));
    const shown = found.activity.filter((sample) => sample.time >= start);
    const trained = found.trainer.map((span) => ({ ...span, doing: TRAINER_WORK[span.what], said: `${TRAINER_WORK[span.what]}, step ${span.step}` }));
    const rows = [["trainer", trained], ...serviceSpans(shown)];
    const shares = rows.map(([process, spans]) => [process, share(spans.filter((span) => span.end >= start))]);
    for (const span of found.down) {
      const row = rows.find(([process]) => process === span.process) || (rows.push([span.process, []]), rows[rows.length - 1]);
      row[1] = [...row[1], { ...span, what: "down", said: `down: ${span.why}` }];
    }
    const names = rows.map(([process]) => process);
    if (names.join() !== [...known.keys()].join()) {
      known.clear();
      for (const process of names) known.set(process, new Lane(process, detail));
      lanes.replaceChildren(...[...known.values()].flatMap((lane) => [lane.label, lane.canvas]), element("span"), times);
    }
    for (const [process, spans] of rows) known.get(process).show(spans, start, end);
    times.textContent = `${clock(start)} to ${clock(end)}`;
    summary.replaceChildren(...shares.filter(([, text]) => text).map(([process, text]) => element("p", {}, `${process}: ${text}`)));
    const x = shown.map((sample) => Math.round(sample.time - start));
    engines.show(Object.keys(shown[0]?.engines || {}).map((engine) => ({ label: `${engine}, decoding`, x, y: shown.map((s) => s.engines?.[engine]?.running ?? null) })));
    groups.show([["in_flight", "being played"], ["ready", "ready"], ["slots", "admitted at most"]].map(([state, label]) => ({ label, x, y: shown.map((s) => s.buffer?.[state] ?? null) })));
    load.show([["cpu", "processors"], ["memory", "memory"]].map(([what, label]) => ({ label, x, y: shown.map((s) => s[what] ?? null) })));
    const loads = [...new Set(shown.flatMap((sample) => Object.keys(sample.processes || {})))];
    processes.show(loads.map((process) => ({ label: process, x, y: shown.map((s) => s.processes?.[process] ?? null) })));
    return found.state === "running";
  };
  return refresh;
}
