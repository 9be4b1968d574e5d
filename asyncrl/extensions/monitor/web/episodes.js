"use strict";
// The trajectories of a run: a list with filters, and single ones with their messages and tokens.

const PAGE_ROWS = 50;
const EPISODE_COLUMNS = [
  ["step", "step"], ["task", "task"], ["reward", "reward"], ["success", "success"], ["num_turns", "turns"], ["num_sampled", "sampled"], ["num_tokens", "tokens"],
  ["version_admitted", "version"], ["status", "status"], ["failure", "failure"], ["env", "environment"], ["wall_s", "seconds"],
];
const NUMBERS = new Set(["step", "reward", "num_turns", "num_sampled", "num_tokens", "version_admitted", "wall_s"]);

function episodeLink(name, row) {
  return runLink(name, "episodes", row.step, row.group, row.episode_index);
}

async function episodesPage(root, name) {
  const state = { sort: "step", descending: "true", offset: 0 };
  const choices = (await source.episodes(name, { limit: 1 })).choices;
  const option = (value, label = value) => element("option", { value }, label);
  const select = (field, label, values) => element("label", {}, label, element("select", { name: field }, option("", "any"), values.map((v) => option(v))));
  const range = (field, label) => element("label", {}, label, element("span", {},
    element("input", { type: "number", step: "any", name: `min_${field}`, "aria-label": `${label} from`, placeholder: "from" }), " ",
    element("input", { type: "number", step: "any", name: `max_${field}`, "aria-label": `${label} to`, placeholder: "to" })));
  const form = element("form", { "aria-label": "filters", onsubmit: (event) => { event.preventDefault(); state.offset = 0; refresh(); } },
    element("label", {}, "text in messages", element("input", { type: "search", name: "text" })),
    range("reward", "reward"), range("num_tokens", "tokens"), range("step", "step"), range("version_admitted", "version"),
    select("env", "environment", choices.env), select("status", "status", choices.status), select("failure", "failure", choices.failure),
    select("success", "success", ["true", "false"]),
    element("button", { type: "submit" }, "Filter"),
    element("button", { type: "reset", onclick: () => setTimeout(() => form.requestSubmit()) }, "Clear"));
  const count = element("p", { role: "status" });
  const body = element("div");
  const older = element("button", { type: "button", onclick: () => { state.offset += PAGE_ROWS; refresh(); } }, "Next page");
  const newer = element("button", { type: "button", onclick: () => { state.offset = Math.max(0, state.offset - PAGE_ROWS); refresh(); } }, "Previous page");
  root.replaceChildren(element("h1", {}, `${name}: trajectories`), form, count, body, element("form", {}, newer, older));
  const refresh = async () => {
    const filters = Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
    const found = await source.episodes(name, { ...state, ...filters, limit: PAGE_ROWS });
    const end = Math.min(found.total, state.offset + PAGE_ROWS);
    count.textContent = found.total ? `${number(state.offset + 1)} to ${number(end)} of ${number(found.total)} trajectories` : "No trajectory passes these filters.";
    newer.disabled = state.offset === 0;
    older.disabled = end >= found.total;
    const heading = ([field, label]) => {
      const here = state.sort === field;
      return element("th", { scope: "col", class: NUMBERS.has(field) && "number", "aria-sort": here ? (state.descending === "true" ? "descending" : "ascending") : null },
        element("button", { type: "button", onclick: () => { Object.assign(state, { sort: field, descending: here && state.descending === "true" ? "false" : "true", offset: 0 }); refresh(); } },
          label + (here ? (state.descending === "true" ? " ↓" : " ↑") : "")));
    };
    const cell = (row, field) => element("td", { class: NUMBERS.has(field) && "number" },
      field === "task" ? element("a", { href: episodeLink(name, row) }, row.task) : NUMBERS.has(field) ? number(row[field]) : row[field] === null ? "–" : String(row[field]));
    body.replaceChildren(element("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Trajectories" }, element("table", {},
      element("thead", {}, element("tr", {}, EPISODE_COLUMNS.map(heading))),
      element("tbody", {}, found.rows.map((row) => element("tr", {}, EPISODE_COLUMNS.map(([field]) => cell(row, field))))))));
    return null;
  };
  return refresh;
}

// How tokens may be coloured: [label, value of token i or null, range or null for categories, note]
function colourings(episode) {
  const sampled = (values) => (i) => (episode.loss_mask[i] && values[i] !== null && values[i] !== undefined ? values[i] : null);
  const found = [
    ["log-probability", sampled(episode.behavior_logprobs), [-4, 0], "of the behavior policy, in nats"],
    ["version", sampled(episode.versions), null, "that sampled the token"],
  ];
  if (episode.advantages) found.push(["advantage", sampled(episode.advantages), [-2, 2], ""]);
  if (episode.policy_logprobs) {
    const ratios = episode.policy_logprobs.map((logp, i) => Math.exp(logp - episode.behavior_logprobs[i]));
    found.push(["ratio", sampled(ratios), [0.5, 1.5], "of the policy at the start of the step to the behavior policy"]);
  }
  if (episode.entropies) found.push(["entropy", sampled(episode.entropies), [4, 0], "of the distribution before the token, in nats"]);
  return found;
}

function mixed(from, to, share) {
  return `rgb(${from.map((part, i) => Math.round(part + (to[i] - part) * share)).join(", ")})`;
}

// Light colours only, so that dark text on them stays readable.
function colourOf(value, range) {
  if (range === null) {
    const colour = COLOURS[Math.abs(value) % COLOURS.length];
    const parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    return mixed([255, 255, 255], parts, 0.45);
  }
  const share = Math.min(1, Math.max(0, (value - range[0]) / (range[1] - range[0])));
  return share < 0.5 ? mixed([244, 150, 120], [250, 250, 250], share * 2) : mixed([250, 250, 250], [140, 190, 235], share * 2 - 1);
}

function tokenPanel(episode) {
  const ways = colourings(episode);
  const panel = element("div", { class: "tokens", tabindex: 0, role: "application", "aria-label": "Tokens; arrow keys move from token to token" });
  const detail = element("p", { role: "status" });
  const scale = element("span", { class: "scale" });
  const spans = episode.texts.map((text, i) => element("span", { class: episode.loss_mask[i] ? "sampled" : "given", "data-i": i }, text));
  panel.append(...spans);
  const choice = element("select", { onchange: () => paint() }, ways.map(([label], i) => element("option", { value: i }, label)));
  let chosen = -1;
  const choose = (i) => {
    if (i < 0 || i >= spans.length) return;
    spans[chosen]?.classList.remove("chosen");
    chosen = i;
    spans[i].classList.add("chosen");
    spans[i].scrollIntoView({ block: "nearest" });
    const values = ways.map(([label, value]) => [label, value(i)]).filter(([, value]) => value !== null).map(([label, value]) => `${label} ${number(value)}`);
    detail.textContent = `token ${i}: ${JSON.stringify(episode.texts[i])}, id ${episode.token_ids[i]}, ${episode.loss_mask[i] ? values.join(", ") : "not sampled"}`;
  };
  const paint = () => {
    const [, value, range, note] = ways[Number(choice.value)];
    spans.forEach((span, i) => {
      const found = value(i);
      span.style.background = found === null ? "" : colourOf(found, range);
    });
    const seen = range || [...new Set(spans.map((_, i) => value(i)).filter((v) => v !== null))].sort((a, b) => a - b);
    scale.replaceChildren(...seen.flatMap((at) => {
      const mark = element("i");
      mark.style.background = colourOf(at, range);
      return [mark, number(at)];
    }), ` ${note}`);
  };
  panel.addEventListener("click", (event) => { if (event.target.dataset.i) choose(Number(event.target.dataset.i)); });
  panel.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 20, ArrowUp: -20 }[event.key];
    if (step) { event.preventDefault(); choose(Math.min(spans.length - 1, Math.max(0, chosen + step))); }
  });
  paint();
  return element("div", {}, element("form", {}, element("label", {}, "colour tokens by", choice), scale), panel, detail);
}

// A content names an image as "[image KEY]".
function withImages(content, files) {
  return content.split(/\[image ([0-9a-f]+)\]/).map((part, place) => {
    if (place % 2 === 0) return part.trim() ? element("pre", {}, part) : null;
    return files[part] ? element("img", { class: "observation", src: files[part], alt: `image ${part}` }) : element("pre", {}, `[image ${part}]`);
  }).filter(Boolean);
}

function conversation(episode) {
  if (!episode.messages) return element("p", {}, "The messages of this trajectory were not kept.");
  return element("div", {}, episode.messages.map((message) => element("section", { class: `message ${message.role}`, "data-turn": message.turn, tabindex: message.turn === null ? null : -1 },
    element("h3", {}, [message.role, message.name, message.turn !== null && message.turn !== undefined ? `turn ${message.turn}` : null,
      message.reward ? `reward ${number(message.reward)}` : null].filter(Boolean).join(" · ")),
    message.content ? withImages(message.content, episode.image_files || {}) : null,
    (message.tool_calls || []).map((call) => element("pre", {}, `${call.name}(${call.arguments})`)))));
}

function episodeColumn(name, episode, heading) {
  const components = (episode.components || []).map((one) => `${one.name} ${number(one.value)}`).join(", ");
  return element("div", {}, element("h2", {}, heading), tiles([
    ["Reward", number(episode.reward), components], ["Success", episode.success === null ? "–" : String(episode.success)],
    ["Status", episode.status, episode.failure || ""], ["Turns", number(episode.turn_start.length)],
    ["Tokens", number(episode.token_ids.length)], ["Version", number(episode.version_admitted), "when admitted"],
  ]), episode.error ? element("pre", { class: "log", tabindex: 0, "aria-label": "error" }, episode.error) : null,
  conversation(episode), element("h2", {}, "Tokens"), tokenPanel(episode));
}

// The page only reads: what it shows may be a stranger's run, whose configuration names code.
function playAgain(episode) {
  const said = element("span", { role: "status" });
  const copy = element("button", { type: "button", onclick: async () => {
    try {
      await navigator.clipboard.writeText(episode.replay_command);
      said.textContent = "copied";
    } catch {
      said.textContent = "select the command and copy it";
    }
  } }, "Copy");
  return element("details", { class: "again" }, element("summary", {}, "Play this again"),
    element("p", {}, "This plays the recorded actions in the environment and compares what comes back; with --sample the policy plays the task anew. Either is then shown here. It runs the environment that this run's configuration names."),
    element("pre", {}, episode.replay_command), element("form", {}, copy, said));
}

async function episodePage(root, name, step, group, indices, turn) {
  const shown = indices.split("+");
  const [tree, ...episodes] = await Promise.all([source.tree(name, step, group), ...shown.map((index) => source.episode(name, step, group, index))]);
  const [first] = episodes;
  const beside = (row) => {
    const index = String(row.episode_index);
    const next = shown.includes(index) ? shown.filter((one) => one !== index) : [...shown, index];
    return next.length ? runLink(name, "episodes", step, group, next.join("+")) : runLink(name, "episodes", step, group, index);
  };
  const info = (row) => Object.entries(row.info || {}).filter(([, value]) => ["string", "number"].includes(typeof value)).map(([key, value]) => `${key} ${value}`).join(", ");
  root.replaceChildren(
    element("h1", {}, `${name}: step ${step}, task ${first.task}`),
    element("p", {}, element("a", { href: runLink(name, "episodes") }, "All trajectories"), ` · group ${group} · environment ${first.env} · worker ${first.worker}`),
    element("h2", {}, "Turns of the group"),
    treePanel(tree, (row, node) => `${runLink(name, "episodes", step, group, row.episode_index)}/${node.turn}`, shown),
    playAgain(first),
    element("div", { class: "beside" }, episodes.flatMap((episode) => [episodeColumn(name, episode, `Episode ${episode.episode_index}`),
      ...episode.replays.map((again) => episodeColumn(name, again, `Episode ${episode.episode_index}, played again: ${again.info.replay}`))])),
    element("h2", {}, "The group"),
    table("Episodes of the group", [
      ["episode", (row) => element("a", { href: episodeLink(name, row) }, String(row.episode_index)), { number: true }],
      ["reward", (row) => number(row.reward), { number: true }], ["success", (row) => String(row.success ?? "–")],
      ["turns", (row) => number(row.num_turns), { number: true }], ["sampled", (row) => number(row.num_sampled), { number: true }],
      ["status", (row) => row.status], ["notes", (row) => info(row)],
      ["", (row) => element("a", { href: beside(row) }, shown.includes(String(row.episode_index)) ? "hide" : "beside")],
    ], first.siblings));
  const message = turn === undefined ? null : root.querySelector(`.message[data-turn="${Number(turn)}"]`);
  // The page is shown once this returns.
  if (message) requestAnimationFrame(() => { message.focus(); message.scrollIntoView({ block: "center" }); });
  return null;
}
