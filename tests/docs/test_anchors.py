"""A link into a page leads to one of its headings."""

import re

import pytest

from tests.docs.blocks import ROOT, pages

LINK = re.compile(r"\]\(([^)\s#]*)#([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*pages(), "CHANGELOG.md"])
def test_every_link_into_a_page_names_a_heading_of_it(page):
    path = ROOT / page
    for target, anchor in LINK.findall(path.read_text()):
        if "://" in target:
            continue
        other = path.parent / target if target else path
        assert anchor in anchors(other.read_text()), f"{target}#{anchor}"
