"use strict";
// The tree of a group: a row for each trajectory, a node for each turn, lines where one hangs from another.

const TREE_COLUMN = 40;
const TREE_ROW = 34;
const TREE_LEFT = 16;

function treeLabel(row) {
  return `episode ${row.episode_index}${row.agent ? `, ${row.agent}` : ""}`;
}

// An SVG of lines behind the nodes, which are links.
function treeLines(rows, at, width, height) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = (kind, path) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", "path");
    made.setAttribute("d", path);
    made.setAttribute("class", kind);
    svg.append(made);
  };
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  svg.setAttribute("aria-hidden", "true");
  for (const row of rows) {
    const own = row.nodes.map((node) => at(row, node.turn));
    if (own.length > 1) line("", `M ${own[0].x} ${own[0].y} H ${own[own.length - 1].x}`);
    if (row.parent && own.length) {
      const from = at(rows.find((one) => one.episode_index === row.parent.episode_index), row.parent.turn);
      if (from) line(row.parent.kind, `M ${from.x} ${from.y} C ${from.x} ${own[0].y}, ${from.x} ${own[0].y}, ${own[0].x} ${own[0].y}`);
    }
  }
  return svg;
}

// The tree. link: the address of a row's node; shown: indices of the trajectories that the page shows. Arrow keys move.
function treePanel(rows, link, shown) {
  const nodes = rows.flatMap((row, y) => row.nodes.map((node) => ({ row, node, y })));
  if (!nodes.length) return element("p", {}, "No trajectory of this group has a turn.");
  const at = (row, turn) => {
    const node = row.nodes.find((one) => one.turn === turn);
    return node && { x: TREE_LEFT + node.depth * TREE_COLUMN, y: (rows.indexOf(row) + 0.5) * TREE_ROW };
  };
  const depth = Math.max(...nodes.map(({ node }) => node.depth));
  const width = TREE_LEFT * 2 + depth * TREE_COLUMN;
  const height = rows.length * TREE_ROW;
  const detail = element("p", { role: "status", class: "node-detail" }, "Arrow keys move from turn to turn, Enter opens one.");
  const made = nodes.map(({ row, node, y }) => {
    const place = at(row, node.turn);
    const earned = node.reward ? `, reward ${number(node.reward)}` : "";
    const what = `${treeLabel(row)}, turn ${node.turn}: ${node.tokens} tokens${earned}${node.given ? ", given" : ""}`;
    const dot = element("a", {
      href: link(row, node), "aria-label": what, title: node.text, tabindex: -1,
      class: `node${node.reward > 0 ? " good" : node.reward < 0 ? " bad" : ""}${node.given ? " given" : ""}`,
      "aria-current": shown.includes(String(row.episode_index)) ? "true" : null,
    }, String(node.turn));
    dot.style.left = `${place.x}px`;
    dot.style.top = `${place.y}px`;
    dot.addEventListener("focus", () => { detail.textContent = node.text ? `${what}: ${node.text}` : what; });
    return { dot, depth: node.depth, y };
  });
  const start = made.find(({ dot }) => dot.hasAttribute("aria-current")) || made[0];
  start.dot.setAttribute("tabindex", 0);
  // The nearest node in a row, or the nearest in the next row above or below that has one.
  const towards = (from, key) => {
    const side = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (side) return made.filter((one) => one.y === from.y && Math.sign(one.depth - from.depth) === side).sort((a, b) => side * (a.depth - b.depth))[0];
    const down = key === "ArrowDown" ? 1 : -1;
    return made.filter((one) => Math.sign(one.y - from.y) === down)
      .sort((a, b) => down * (a.y - b.y) || Math.abs(a.depth - from.depth) - Math.abs(b.depth - from.depth))[0];
  };
  const field = element("div", { class: "tree-field" }, treeLines(rows, at, width, height), made.map(({ dot }) => dot));
  field.style.width = `${width}px`;
  field.style.height = `${height}px`;
  field.addEventListener("keydown", (event) => {
    const from = made.find(({ dot }) => dot === event.target);
    if (!from || !/^Arrow/.test(event.key)) return;
    event.preventDefault();
    const next = towards(from, event.key);
    if (!next) return;
    from.dot.setAttribute("tabindex", -1);
    next.dot.setAttribute("tabindex", 0);
    next.dot.focus();
  });
  const labels = element("div", { class: "tree-labels" }, rows.map((row) => {
    const label = element("span", {}, treeLabel(row), element("small", {}, row.status === "failed" ? "failed" : number(row.reward)));
    label.style.height = `${TREE_ROW}px`;
    return label;
  }));
  return element("div", {}, element("div", { class: "tree" }, labels, element("div", { class: "tree-scroll", role: "group", "aria-label": "Tree of the group" }, field)), detail);
}
