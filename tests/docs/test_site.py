"""The documentation as a site: every page is in its navigation; with the slow tests it is built, code is code, pictures
and links are there, and a browser opens every page."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from tests import browser
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
def folder(tmp_path_factory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def site(folder) -> dict[Path, Page]:
    """The pages of the built site, by path."""
    return {path: Page(path.read_text()) for path in sorted(folder.rglob("*.html")) if path.name != "404.html"}


def test_every_page_is_in_the_navigation():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = re.findall(r"[\w/-]+\.md", str(config["nav"]))
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(pages)


@pytest.mark.slow
def test_code_is_shown_as_code(site):
    assert len(site) > 20
    assert not {
        path.parent.name: line for path, page in site.items() for line in page.text.split("\n") if "```" in line
    }


@pytest.mark.slow
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


SEEN = """({
    text: Array.from(document.querySelectorAll("article"), x => x.innerText).join("\\n"),
    fences: document.body.innerText.split("\\n").filter(line => line.includes("```")),
    height: document.querySelector("h1")?.getBoundingClientRect().height,
    links: document.querySelectorAll("nav.md-nav--primary a.md-nav__link").length,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
})"""
"""Facts of a page as a browser lays it out: sizes are in pixels."""


FEW = ("index.html", "tour/index.html", "command-line/index.html", "benchmarks/index.html")
"""Pages of each kind: text, code with pictures, long code, and wide tables."""


@pytest.mark.skipif(browser.PROGRAM is None, reason="no browser is installed: Chromium or Chrome, on the path")
@pytest.mark.slow
@pytest.mark.parametrize("chosen", [FEW, None], ids=["few", "all"])
def test_a_browser_opens_pages(folder, site, tmp_path, chosen):
    pages = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    wrong = {}
    with browser.served(folder) as address, browser.opened(tmp_path) as tab:
        for path in map(folder.joinpath, chosen) if chosen else site:
            name = str(path.relative_to(folder))
            errors = tab.open(f"{address}/{name}")
            errors += [f"no picture: {source}" for source in tab.broken_pictures()]
            errors += [f"asks {x}" for x in tab.requests() if not x.startswith((f"{address}/", "data:"))]
            seen = tab.run(SEEN)
            errors += [f"raw fence: {line}" for line in seen["fences"]]
            if not seen["text"].strip() or not seen["height"]:
                errors.append("no text or no heading")
            if seen["links"] < len(pages):
                errors.append(f"{seen['links']} links in the navigation")
            if seen["overflow"] > 0:
                errors.append(f"{seen['overflow']} pixels wider than the window")
            wrong |= {name: errors} if errors else {}
    assert not wrong


@pytest.mark.skipif(browser.PROGRAM is None, reason="no browser is installed: Chromium or Chrome, on the path")
def test_what_the_browser_finds(tmp_path):
    (tmp_path / "page.html").write_text("<img src=a.png><p>x</p><script>console.error(1); nothing()</script>")
    (tmp_path / "good.html").write_text("<p>x</p>")
    with browser.served(tmp_path) as address, browser.opened(tmp_path / "browser") as tab:
        errors = tab.open(f"{address}/page.html")
        assert {error.partition(":")[0] for error in errors} == {"console", "exception", "log"}
        assert tab.broken_pictures() == [f"{address}/a.png"] and f"{address}/a.png" in tab.requests()
        assert not any("page.html" in error for error in tab.open(f"{address}/good.html"))
        assert tab.run("document.body.innerText.trim()") == "x"
        assert tab.open(f"{address}/absent.html")
        with pytest.raises(RuntimeError, match="nothing"):
            tab.run("nothing()")
