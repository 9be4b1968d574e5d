"""The files of the web page. They need no build step and load nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

WEB = Path(__file__).with_name("web")
PAGE = "index.html"
SCRIPTS = (
    "uPlot.iife.min.js",
    "data.js",
    "elements.js",
    "charts.js",
    "overview.js",
    "timeline.js",
    "tree.js",
    "episodes.js",
    "main.js",
)
"""In the order in which the page loads them."""
STYLES = ("uPlot.min.css", "monitor.css")
FILES = frozenset((*SCRIPTS, *STYLES))
