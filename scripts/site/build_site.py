"""Build the documentation as a site: `python scripts/site/build_site.py --out build/site`.

The pages are those of the repository: the README, `docs/`, `recipes/` and `envs/`, at the same paths, so their links to
each other hold. What they link to in the code becomes a page of its own. The reference is made from the code. The site
loads nothing from other machines and can be opened as files. A broken link ends the build.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from reference import reference_pages

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
IMAGES = (".png", ".svg")
LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".sh": "bash",
    ".json": "json",
    ".jsonl": "json",
    ".ipynb": "json",
}
NOTE = re.compile(r"^<!-- docs: .*?-->\n", re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")


def _pages(folder: str, names: str) -> list[str]:
    return [f"{folder}/{name}.md" for name in names.split()]


NAVIGATION: dict[str, list[str]] = {
    "Tutorial": _pages(
        "docs/tutorial",
        "README 0-your-data 1-first-run 2-environment 3-agent 4-loss 5-evaluation 6-gpu 7-cluster 8-your-agent "
        "9-extension",
    ),
    "Concepts": _pages(
        "docs",
        "architecture ways transports schedules engine-and-trainer rollouts policies opponents curriculum",
    ),
    "How-to": [
        *_pages(
            "docs",
            "install which-method data environments rewards sft adapters sandbox gateway harnesses tool-formats",
        ),
        *_pages("docs", "evaluation monitor metrics lora"),
        *_pages("docs", "speculative-decoding memory placement planning scaling containers studies"),
    ],
    "Algorithms": [
        *_pages("docs/algorithms", "README presets advantages losses corrections proximal aggregation"),
        *_pages("docs/algorithms", "regularisation asynchrony-control curation"),
    ],
    "Reference": ["docs/configuration.md"],
    "Recipes": ["recipes/README.md"],
    "Performance": [
        *_pages("docs", "performance without-a-gpu benchmarks"),
        *_pages("docs/benchmarks", "schedules trainer buffer weights machines services reliability learning"),
    ],
    "Reliability": ["docs/reliability.md", "docs/limits.md", "docs/reports.md"],
    "Troubleshooting": ["docs/troubleshooting.md"],
    "Project": ["CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md"],
}
"""Sections and their pages. The reference, recipes and environments have theirs added, and "How-to" what is new."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the documentation as a site.")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "site", help="folder that will hold the site"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="asyncrl-site-") as folder:
        built = build(Path(folder))
        if args.out.exists():
            shutil.rmtree(args.out)
        shutil.copytree(built, args.out)
    print(f"{args.out / 'index.html'}")


def build(folder: Path) -> Path:
    """Lay out the pages in `folder` and build them; return the folder of the site."""
    pages = folder / "pages"
    written = [path for page in sources() for path in copy_page(page, pages)]
    for path, text in reference_pages().items():
        written.append(write(pages / path, text))
    shutil.copy(HERE / "iframe-worker.js", pages)
    sections = navigation({str(path.relative_to(pages)) for path in written})
    settings = (HERE / "zensical.toml").read_text().replace("nav = []", f"nav = [\n{sections}]")
    write(folder / "zensical.toml", settings)
    command = [
        sys.executable,
        "-m",
        "zensical",
        "build",
        "--strict",
        "--config-file",
        str(folder / "zensical.toml"),
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nbuild_site: the site was not built")
    return folder / "built"


def sources() -> list[Path]:
    """Return the pages of the repository, relative to its root."""
    found = [ROOT / name for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for folder in ("docs", "recipes", "envs"):
        found += sorted((ROOT / folder).rglob("*.md"))
    return [path.relative_to(ROOT) for path in found if path.name != "instruction.md"]


def copy_page(page: Path, pages: Path) -> Iterator[Path]:
    """Copy a page with the images and the code that it links to; yield the page, as a path below `pages`."""
    text = NOTE.sub("", (ROOT / page).read_text())
    for name in set(LINK.findall(FENCE.sub("", text))):
        if "://" in name:
            continue
        target = Path(os.path.normpath(page.parent / name))
        if target.suffix in IMAGES:
            (pages / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / target, pages / target)
        elif target.suffix != ".md":
            write(pages / f"{target}.md", code_page(target))
            text = re.sub(rf"(?<=\]\(){re.escape(name)}(?=[)#])", f"{name}.md", text)
    yield write(pages / page, text)


def code_page(path: Path) -> str:
    """Return the page of a file of the repository, or of a folder: its files' names."""
    if (ROOT / path).is_dir():
        files = sorted(p for p in (ROOT / path).rglob("*") if p.is_file() and "__pycache__" not in p.parts)
        shown, language = "\n".join(str(file.relative_to(ROOT)) for file in files), "text"
    else:
        shown, language = (ROOT / path).read_text().rstrip(), LANGUAGES.get(path.suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n``````{language}\n{shown}\n``````\n"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def navigation(written: set[str]) -> str:
    """Return the navigation in TOML."""
    sections = {title: list(pages) for title, pages in NAVIGATION.items()}
    named = {page for pages in sections.values() for page in pages} | {"README.md"}
    for page in sorted(written - named):
        if page.startswith("docs/reference/"):
            sections["Reference"].append(page)
        else:
            sections["Recipes" if page.startswith("recipes/") else "How-to"].append(page)
    lines = [f"  {json.dumps('README.md')},\n"]
    lines += [f"  {{ {json.dumps(title)} = {json.dumps(pages)} }},\n" for title, pages in sections.items()]
    return "".join(lines)


if __name__ == "__main__":
    main()
