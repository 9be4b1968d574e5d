"use strict";
// Curves of one run or of several, the list of runs, failures, settings and logs.

const LAGS = ["0", "1", "2", "3_4", "5_8", "9_up"];
// [title, metrics as [name, label], note]
const CHARTS = {
  Learning: [
    ["Reward", [["reward/mean", "mean of the step"]], "of trained trajectories, with a standard error"],
    ["Success", [["success/mean", "trained"]], "and held out, with 95 % intervals"],
    ["Policy loss", [["loss/policy", "loss"]]],
    ["Gradient norm", [["grad_norm", "norm"]]],
    ["Entropy", [["entropy/mean", "entropy"], ["entropy", "entropy"]]],
    ["Divergence", [["kl/proximal_to_current", "proximal to current"], ["kl/reference", "from the reference"]]],
    ["Lengths", [["length/mean", "tokens, mean"], ["length/max", "tokens, longest"]]],
    ["Turns", [["turns/mean", "turns"]]],
    ["Groups without signal", [["group/zero_variance_fraction", "share"]], "all episodes earned the same"],
    ["Learning rate", [["learning_rate", "rate"]]],
  ],
  Asynchrony: [
    ["Staleness", [["staleness/mean", "mean"], ["staleness/max", "largest"]], "in versions"],
    ["Tokens by staleness", LAGS.map((lag) => [`lag_${lag}/token_fraction`, lag.replace("_", "–").replace("–up", "+")]), "share"],
    ["Effective sample size", [["ess/token", "of tokens"], ["ess/sequence", "of sequences"]], "as a share"],
    ["Clipped tokens", [["clip_fraction", "all"], ...LAGS.map((lag) => [`lag_${lag}/clip_fraction`, `staleness ${lag.replace("_", "–")}`])], "share"],
    ["Engine and trainer", [["mismatch/abs", "mean difference"]], "of log-probabilities, in nats"],
    ["Mismatch", [["mismatch/kl_k1", "k1"], ["mismatch/kl_k3", "k3"]], "divergence of behavior from proximal policy"],
    ["Importance ratio", [["ratio/mean", "mean"], ["ratio/max", "largest"]]],
    ["Groups in the buffer", [["buffer/ready", "ready"], ["buffer/in_flight", "being played"], ["buffer/slots", "admitted at most"]]],
    ["Groups so far", [["buffer/admitted", "admitted"], ["buffer/trained", "trained"], ["buffer/dropped", "dropped"], ["buffer/failed", "failed"]]],
  ],
  Speed: [
    ["Throughput", [["tokens_per_s", "trained tokens a second"]]],
    ["Seconds of a step", [["time/wait_s", "waiting for groups"], ["time/train_s", "training"], ["time/publish_s", "publishing"]]],
    ["Engine pause", [["time/pause_s", "longest, seconds"]], "while weights are swapped"],
    ["Trainer busy", [["busy/trainer", "share"]]],
  ],
};
const BAND = ["reward/std", "sequences"];
const HELD_OUT = { Reward: "reward", Success: "success" };

// Draws the charts of one or several runs and keeps them up to date.
class Curves {
  constructor(names) {
    this.names = names;
    this.columns = new Map();
    this.evaluations = new Map();
    this.root = element("div");
    this.charts = [];
    for (const [heading, charts] of Object.entries(CHARTS)) {
      const grid = element("div", { class: "charts" });
      for (const [title, metrics, note] of charts) {
        const chart = new LineChart(title, note);
        this.charts.push({ chart, metrics, title });
        grid.append(chart.figure);
      }
      this.root.append(element("h2", {}, heading), grid);
    }
    this.own = element("select", { "aria-label": "another metric", onchange: () => this.draw() });
    this.ownChart = new LineChart("Another metric");
    this.root.append(element("h2", {}, "Any metric"), element("form", {}, this.own), this.ownChart.figure);
  }

  async refresh(descriptions) {
    for (const description of descriptions) {
      this.evaluations.set(description.name, description.evaluations);
      if (this.own.options.length < description.metrics.length) {
        const chosen = this.own.value;
        this.own.replaceChildren(...description.metrics.map((name) => element("option", {}, name)));
        this.own.value = chosen || description.metrics[0];
      }
      const before = this.columns.get(description.name);
      const after = before && before.step.length ? before.step[before.step.length - 1] : -1;
      const added = await source.steps(description.name, description.metrics, after);
      this.columns.set(description.name, before ? joined(before, added) : added);
    }
    this.draw();
  }

  draw() {
    for (const { chart, metrics, title } of this.charts) chart.show(this.lines(metrics, title));
    if (this.own.value) this.ownChart.show(this.lines([[this.own.value, this.own.value]], ""));
  }

  lines(metrics, title) {
    const several = this.names.length > 1;
    const lines = [];
    for (const [place, name] of this.names.entries()) {
      const columns = this.columns.get(name);
      if (!columns) continue;
      // A run has one colour in all charts, and tells its metrics apart by the line's pattern.
      const own = several ? { colour: place } : {};
      for (const [pattern, [metric, label]] of metrics.entries()) {
        if (!columns[metric]) continue;
        const line = { ...own, ...(several ? { dash: pattern } : {}), label: several ? (metrics.length > 1 ? `${name}: ${label}` : name) : label, x: columns.step, y: columns[metric] };
        if (metric === "reward/mean" && !several) Object.assign(line, standardError(columns));
        lines.push(line);
      }
      const held = (this.evaluations.get(name) || []).filter((one) => one.what === HELD_OUT[title]);
      if (HELD_OUT[title] && held.length) {
        lines.push({ ...own, label: several ? `${name}: held out` : "held out", points: true, x: held.map((one) => one.version),
          y: held.map((one) => one.mean), low: held.map((one) => one.ci_low), high: held.map((one) => one.ci_high) });
      }
    }
    return lines;
  }
}

function joined(before, added) {
  const names = new Set([...Object.keys(before), ...Object.keys(added)]);
  const first = before.step.length;
  return Object.fromEntries([...names].map((name) => [name,
    [...(before[name] || new Array(first).fill(null)), ...(added[name] || new Array(added.step.length).fill(null))]]));
}

function standardError(columns) {
  const [deviations, counts] = BAND.map((name) => columns[name]);
  if (!deviations || !counts) return {};
  const error = deviations.map((deviation, i) => deviation / Math.sqrt(Math.max(1, counts[i])));
  return { low: columns["reward/mean"].map((mean, i) => mean - error[i]), high: columns["reward/mean"].map((mean, i) => mean + error[i]) };
}

async function overviewPage(root, name) {
  const heading = element("h1", {}, name);
  const facts = element("div");
  const curves = new Curves([name]);
  root.replaceChildren(heading, facts, curves.root);
  return async () => {
    const run = await source.run(name);
    await curves.refresh([run]);
    const columns = curves.columns.get(name);
    const latest = (key) => columns[key] && columns[key].length ? columns[key][columns[key].length - 1] : null;
    const last = run.evaluations[run.evaluations.length - 1];
    const first = run.evaluations[0];
    facts.replaceChildren(tiles([
      ["State", element("span", { class: run.state }, run.state), `wrote ${ago(run.changed)}`],
      ["Step", `${number(run.step)} of ${number(run.num_steps)}`],
      ["Reward", number(latest("reward/mean")), "of the last step"],
      ["Held out", last ? number(last.mean) : "–", last ? `${last.what} ${interval(last)}, ${last.when} training` : ""],
      ["Held out before", first && first.when === "before" ? number(first.mean) : "–", first ? interval(first) : ""],
      ["Staleness", number(latest("staleness/max")), `largest; ${run.config.buffer ? run.config.buffer.max_staleness : "?"} allowed`],
      ["Tokens a second", number(latest("tokens_per_s"))],
      ["Restarts", number(run.restarts.length)],
      ["Failed episodes", number(run.ledger.failures.reduce((sum, one) => sum + one.episodes, 0))],
    ]), run.findings.length ? findingList(run.findings) : "");
    return run.state === "running";
  };
}

function findingList(findings) {
  return element("section", {}, element("h2", {}, "What stands out"), element("ul", {}, findings.map((finding) =>
    element("li", {}, element("strong", {}, finding.kind), `: ${finding.what}. `, element("em", {}, finding.advice)))));
}

async function comparePage(root, names) {
  const curves = new Curves(names);
  const settings = element("div");
  root.replaceChildren(element("h1", {}, `Compare ${names.join(", ")}`), element("h2", {}, "Settings that differ"), settings, curves.root);
  const rows = await source.compare(names);
  settings.replaceChildren(table("Settings that differ",
    [["setting", (row) => element("code", {}, row.key)],
      ...names.map((name) => [name, (row) => JSON.stringify(row.values[name]) ?? "–"])], rows));
  return async () => {
    const runs = await Promise.all(names.map((name) => source.run(name)));
    await curves.refresh(runs);
    return runs.some((run) => run.state === "running");
  };
}

async function runsPage(root) {
  const chosen = new Set();
  const body = element("div");
  const compare = element("button", { type: "button", onclick: () => { location.hash = "#/compare/" + [...chosen].map(encodeURIComponent).join(","); } }, "Compare chosen");
  const save = element("button", { type: "button", onclick: async () => download(await source.exported([...chosen]), "asyncrl-runs.html") }, "Export chosen as HTML");
  const enable = () => { compare.disabled = chosen.size < 2; save.disabled = chosen.size < 1; };
  enable();
  root.replaceChildren(element("h1", {}, "Runs"), element("form", {}, compare, source.live ? save : null), body);
  let shown = "";
  return async () => {
    const runs = await source.runs();
    const now = JSON.stringify(runs);
    if (now !== shown) {
      shown = now;
      const held = body.contains(document.activeElement) ? document.activeElement.id : "";
      body.replaceChildren(table("Runs", [
        ["", (run) => element("input", { type: "checkbox", id: `choose-${run.name}`, "aria-label": `choose ${run.name}`, checked: chosen.has(run.name),
          onchange: (event) => { event.target.checked ? chosen.add(run.name) : chosen.delete(run.name); enable(); } })],
        ["run", (run) => element("a", { href: runLink(run.name), id: `open-${run.name}` }, run.name)],
        ["state", (run) => element("span", { class: run.state }, run.state)],
        ["step", (run) => `${number(run.step)} of ${number(run.num_steps)}`, { number: true }],
        ["reward", (run) => number(run.reward), { number: true }],
        ["held out before", (run) => number(run.success_before), { number: true }],
        ["after", (run) => number(run.success_after), { number: true }],
        ["environment", (run) => run.environment],
        ["preset", (run) => run.preset],
        ["wrote", (run) => ago(run.changed)],
      ], runs));
      if (held) document.getElementById(held)?.focus();
    }
    return runs.some((run) => run.state === "running");
  };
}

async function failuresPage(root, name) {
  const body = element("div");
  root.replaceChildren(element("h1", {}, `${name}: failures`), body);
  return async () => {
    const run = await source.run(name);
    const { failures, groups, dropped, quarantined } = run.ledger;
    body.replaceChildren(
      element("h2", {}, "Failed episodes by class"),
      failures.length ? element("div", {}, failures.map((one) => element("details", { open: true },
        element("summary", {}, `${one.failure}: ${number(one.episodes)} episodes, ${number(one.groups)} groups lost`),
        element("h3", {}, "First"), element("pre", { class: "log", tabindex: 0, "aria-label": `first ${one.failure} failure` }, one.first),
        one.newest !== one.first ? element("div", {}, element("h3", {}, "Newest"), element("pre", { class: "log", tabindex: 0, "aria-label": `newest ${one.failure} failure` }, one.newest)) : null)))
        : element("p", {}, "None."),
      element("h2", {}, "Groups"), table("Groups by state", [["state", (row) => row.state], ["groups", (row) => number(row.groups), { number: true }]], groups),
      element("h2", {}, "Dropped groups"), dropped.length ? table("Dropped groups", [["reason", (row) => row.reason], ["groups", (row) => number(row.groups), { number: true }]], dropped) : element("p", {}, "None."),
      element("h2", {}, "Restarts"), run.restarts.length ? table("Restarts", [["time", (row) => clock(row.time)], ["process", (row) => row.name],
        ["why", (row) => row.reason || row.why], ["seconds down", (row) => number(row.down_s), { number: true }]], run.restarts) : element("p", {}, "None."),
      element("h2", {}, "Quarantined workers"), quarantined.length ? table("Quarantined workers", [["worker", (row) => row.worker], ["reason", (row) => row.reason]], quarantined) : element("p", {}, "None."));
    return run.state === "running";
  };
}

async function settingsPage(root, name) {
  const run = await source.run(name);
  const rows = [];
  const walk = (value, prefix) => {
    if (value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length) {
      for (const [key, inner] of Object.entries(value)) walk(inner, prefix ? `${prefix}.${key}` : key);
    } else rows.push({ key: prefix, value });
  };
  walk(run.config, "");
  root.replaceChildren(element("h1", {}, `${name}: settings`),
    element("div", { class: "long" }, table("Settings", [["setting", (row) => element("code", {}, row.key)], ["value", (row) => JSON.stringify(row.value)]], rows)),
    element("h2", {}, "Checkpoints"),
    table("Checkpoints", [["version", (row) => number(row.version), { number: true }], ["folder", (row) => element("code", {}, row.path)]], run.checkpoints));
  return null;
}

async function logsPage(root, name) {
  const run = await source.run(name);
  const text = element("pre", { class: "log", tabindex: 0, "aria-label": "log" });
  const choice = element("select", { onchange: () => refresh() }, run.logs.map((log) => element("option", { value: log.name }, `${log.name} (${number(log.bytes)} bytes)`)));
  root.replaceChildren(element("h1", {}, `${name}: logs`), element("form", {}, element("label", {}, "process", choice)), text);
  const refresh = async () => {
    if (choice.value) text.textContent = await source.log(name, choice.value);
    return run.state === "running";
  };
  return refresh;
}
