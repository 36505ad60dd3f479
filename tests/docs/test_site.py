"""The documentation as a site: every page is in its navigation, code is code, and pictures and links are there."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from tests.paths import ROOT


class Page(HTMLParser):
    """The text outside code, and what links and pictures point to."""

    def __init__(self, text: str):
        super().__init__()
        self.text, self.targets, self.ids, self._depth = "", [], set(), 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self._depth += tag in ("code", "pre", "script", "style")
        self.ids.add(values.get("id"))
        for name in ("href", "src"):
            if name in values:
                self.targets.append(values[name])

    def handle_endtag(self, tag):
        self._depth -= tag in ("code", "pre", "script", "style")

    def handle_data(self, data):
        self.text += "" if self._depth else data


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> dict[Path, Page]:
    """The pages of the built site, by path."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return {path: Page(path.read_text()) for path in sorted(folder.rglob("*.html")) if path.name != "404.html"}


def test_every_page_is_in_the_navigation():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = re.findall(r"[\w/-]+\.md", str(config["nav"]))
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(pages)


def test_code_is_shown_as_code(site):
    assert len(site) > 20
    assert not {
        path.parent.name: line for path, page in site.items() for line in page.text.split("\n") if "```" in line
    }


def test_links_and_pictures_lead_somewhere(site):
    missing = []
    for path, page in site.items():
        for target in page.targets:
            file, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:|//", target) or "assets/" in target:
                continue
            there = (path.parent / file).resolve() if file else path
            there = there / "index.html" if there.is_dir() else there
            if not there.exists() or anchor and there in site and anchor not in site[there].ids:
                missing.append(f"{path.parent.name}: {target}")
    assert not missing
