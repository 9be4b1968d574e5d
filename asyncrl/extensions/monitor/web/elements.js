"use strict";
// Small builders of elements and texts.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value) < 1e-12 ? 0 : Math.abs(value);
  if (size === 0) return "0";
  return size < 1e-3 || size >= 1e6 ? value.toExponential(2) : value.toFixed(size >= 100 ? 1 : digits);
}

function interval(result) {
  if (!result) return "";
  return result.ci_low === null || result.ci_low === undefined
    ? "" : `[${number(result.ci_low)}, ${number(result.ci_high)}]`;
}

function ago(seconds_since_1970) {
  const seconds = Math.max(0, Date.now() / 1000 - seconds_since_1970);
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit} ago`;
  }
  return "just now";
}

function clock(seconds_since_1970) {
  return new Date(seconds_since_1970 * 1000).toLocaleTimeString("en-GB");
}

// columns: [heading, row => content, {number: true}]
function table(caption, columns, rows) {
  const head = columns.map(([heading, , options = {}]) =>
    element("th", { scope: "col", class: options.number && "number" }, heading));
  const body = rows.map((row) => element("tr", {}, columns.map(([, content, options = {}]) =>
    element("td", { class: options.number && "number" }, content(row)))));
  return element("div", { class: "table", tabindex: 0, role: "region", "aria-label": caption },
    element("table", {}, element("thead", {}, element("tr", {}, head)), element("tbody", {}, body)));
}

// facts: [term, value, small print]
function tiles(facts) {
  return element("dl", { class: "tiles" }, facts.map(([term, value, small]) =>
    element("div", {}, element("dt", {}, term), element("dd", {}, value, small ? element("small", {}, small) : null))));
}

function runLink(name, ...rest) {
  return "#/run/" + [name, ...rest].map(encodeURIComponent).join("/");
}

function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
