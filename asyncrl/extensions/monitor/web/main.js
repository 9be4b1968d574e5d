"use strict";
// Which page is shown, and when it is asked for news.

const LIVE_MS = 2000;
const IDLE_MS = 10000;
const RUN_PAGES = { overview: overviewPage, timeline: timelinePage, episodes: episodesPage, failures: failuresPage, settings: settingsPage, logs: logsPage };
const LABELS = { overview: "Overview", timeline: "Timeline", episodes: "Trajectories", failures: "Failures", settings: "Settings", logs: "Logs" };
const main = document.getElementById("main");
const pages = document.getElementById("pages");
const statusLine = document.getElementById("status");
let timer = 0;
let shown = 0;

function links(name, current) {
  pages.replaceChildren(...(name === null ? [] : Object.keys(RUN_PAGES).filter((page) => source.live || !["timeline", "logs"].includes(page))
    .map((page) => element("a", { href: runLink(name, page), "aria-current": page === current ? "page" : null }, LABELS[page]))));
}

function opened(root) {
  const [kind, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const words = rest.map(decodeURIComponent);
  if (kind === "run" && words[0]) {
    const [name, page = "overview", ...more] = words;
    document.title = `${name} · asyncrl`;
    links(name, page);
    if (page === "episodes" && more.length >= 3) return episodePage(root, name, ...more);
    return (RUN_PAGES[page] || overviewPage)(root, name);
  }
  links(null);
  document.title = "asyncrl";
  if (kind === "compare" && words[0]) return comparePage(root, words[0].split(","));
  return runsPage(root);
}

async function show() {
  clearTimeout(timer);
  const turn = ++shown;
  const root = element("div");
  try {
    const refresh = await opened(root);
    if (turn !== shown) return;
    statusLine.textContent = "";
    main.replaceChildren(root);
    await keep(refresh, turn);
  } catch (error) {
    if (turn === shown) main.replaceChildren(element("p", { class: "error", role: "alert" }, error.message));
  }
}

// Refreshes the page now and again: often while a run goes on, seldom otherwise, since a stopped one may be resumed.
async function keep(refresh, turn, first = true) {
  if (!refresh || turn !== shown) return;
  let live = false;
  try {
    live = await refresh();
    statusLine.textContent = source.live ? (live ? "live" : "") : "exported file";
  } catch (error) {
    if (first) throw error;
    statusLine.textContent = error.message;
  }
  if (turn === shown && source.live && live !== null) {
    timer = setTimeout(() => keep(refresh, turn, false), live ? LIVE_MS : IDLE_MS);
  }
}

document.getElementById("skip").addEventListener("click", () => main.focus());
window.addEventListener("hashchange", show);
show();
