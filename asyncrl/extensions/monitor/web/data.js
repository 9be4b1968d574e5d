"use strict";
// Where pages get what they show: from the server that served them, or from the file they were exported to.

class ServedRuns {
  constructor() {
    this.live = true;
    const given = /[#&]token=([^&]+)/.exec(location.hash);
    if (given) {
      sessionStorage.setItem("asyncrl.token", decodeURIComponent(given[1]));
      history.replaceState(null, "", "#/");
    }
    this.token = sessionStorage.getItem("asyncrl.token") || "";
  }

  async get(path, parameters = {}) {
    const query = new URLSearchParams(parameters).toString();
    const answer = await fetch(`api/${path}${query ? "?" + query : ""}`, {
      headers: { Authorization: `Bearer ${this.token}` },
    });
    if (answer.status === 401) throw new Error("Open the link that asyncrl monitor printed: it holds the token.");
    if (!answer.ok) {
      const body = await answer.json().catch(() => ({}));
      throw new Error((body.error && body.error.message) || `HTTP ${answer.status}`);
    }
    return answer;
  }

  async json(path, parameters) {
    return (await this.get(path, parameters)).json();
  }

  async runs() { return (await this.json("runs")).runs; }
  run(name) { return this.json("run", { name }); }
  steps(name, keys, after = -1) { return this.json("steps", { name, keys: keys.join(","), after }); }
  timeline(name) { return this.json("timeline", { name }); }
  episodes(name, parameters) { return this.json("episodes", { name, ...parameters }); }
  episode(name, step, group, index) { return this.json("episode", { name, step, group, index }); }
  tree(name, step, group) { return this.json("tree", { name, step, group }); }
  async log(name, process) { return (await this.json("log", { name, process })).text; }
  compare(names) { return this.json("compare", { names: names.join(",") }); }
  async exported(names) { return (await this.get("export", { names: names.join(",") })).blob(); }
}

class ExportedRuns {
  constructor(data) {
    this.live = false;
    this.data = data;
  }

  async runs() { return this.data.runs; }
  async run(name) { return this.data.run[name].description; }
  async timeline() { return { trainer: [], down: [], activity: [] }; }
  async compare() { return this.data.compare; }

  async steps(name, keys, after = -1) {
    const columns = this.data.run[name].steps;
    const kept = columns.step.map((step) => step > after);
    return Object.fromEntries(["step", ...keys].map((key) => [key, (columns[key] || []).filter((_, i) => kept[i])]));
  }

  async episodes(name, parameters) {
    const { sort = "step", descending = "true", offset = 0, limit = 50, ...filters } = parameters;
    const run = this.data.run[name];
    const passes = (row) => Object.entries(filters).every(([key, wanted]) => {
      const range = /^(min|max)_(.*)$/.exec(key);
      if (range) return range[1] === "min" ? row[range[2]] >= Number(wanted) : row[range[2]] <= Number(wanted);
      if (key === "text") {
        const whole = run.episode[`${row.step}/${row.group}/${row.episode_index}`];
        return JSON.stringify(whole.messages).toLowerCase().includes(wanted.toLowerCase());
      }
      return String(row[key]) === wanted;
    });
    const sign = descending === "true" ? -1 : 1;
    const rows = run.episodes.filter(passes).sort((a, b) => sign * (a[sort] > b[sort] ? 1 : a[sort] < b[sort] ? -1 : 0));
    return { total: rows.length, rows: rows.slice(Number(offset), Number(offset) + Number(limit)), choices: run.choices };
  }

  async episode(name, step, group, index) {
    const found = this.data.run[name].episode[`${step}/${group}/${index}`];
    if (!found) throw new Error("This trajectory is not in the exported file.");
    return found;
  }

  async tree(name, step, group) { return this.data.run[name].tree[`${step}/${group}`]; }
  async log() { return "Logs are not in the exported file."; }
}

const source = window.ASYNCRL_EXPORT ? new ExportedRuns(window.ASYNCRL_EXPORT) : new ServedRuns();
