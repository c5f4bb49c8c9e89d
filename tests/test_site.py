"""The site as a reader has it: on a phone, on a dark page, and in its search."""

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from limits import LIMIT

ROOT = Path(__file__).parent.parent
PHONE, DESKTOP = {"width": 390, "height": 800}, {"width": 1280, "height": 800}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """As `make check` has built it; otherwise anew."""
    if "ADAQN_SITE" in os.environ:
        return Path(os.environ["ADAQN_SITE"])
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    return site


@pytest.fixture(scope="module")
def address(built):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(built)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def browser(chromium):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.mark.parametrize("page", ["", "results/", "whole/", "methods/", "algorithm/", "api/adaqn/", "papers/"])
def test_no_page_scrolls_sideways_on_a_phone(browser, address, page):
    opened = browser.new_page(viewport=PHONE)
    opened.goto(f"{address}/{page}")
    assert opened.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    opened.close()


@pytest.mark.parametrize("page", ["", "results/", "whole/", "methods/", "migrate/", "cli/"])
def test_no_table_scrolls_sideways_on_a_phone(browser, address, page):
    opened = browser.new_page(viewport=PHONE)
    opened.goto(f"{address}/{page}")
    tables = opened.locator(".md-typeset__scrollwrap")
    assert not tables.evaluate_all("all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)")
    opened.close()


@pytest.mark.parametrize("size, is_named", [(PHONE, True), (DESKTOP, False)])
def test_rows_of_a_wide_table_are_cards_on_a_phone(browser, address, size, is_named):
    opened = browser.new_page(viewport=size)
    opened.goto(f"{address}/methods/")
    table = opened.locator("[data-cards]").first
    assert table.locator("thead").is_visible() is not is_named
    named = table.locator("td[data-name]").first
    assert named.evaluate("e => getComputedStyle(e, '::before').content") == ('"name"' if is_named else "none")
    opened.close()


@pytest.mark.parametrize("page, name", [("", "embedded-tanh"), ("algorithm/", "cycle"), ("methods/", "rosenbrock")])
@pytest.mark.parametrize("size, end", [(PHONE, "-phone.svg"), (DESKTOP, ".svg")])
def test_a_phone_gets_the_picture_that_was_drawn_for_it(browser, address, page, name, size, end):
    opened = browser.new_page(viewport=size)
    opened.goto(f"{address}/{page}")
    picture = opened.locator("picture img").first
    picture.scroll_into_view_if_needed()
    assert picture.evaluate("image => image.currentSrc").endswith(f"/{name}{end}")
    assert picture.evaluate("image => image.naturalWidth") > 0
    opened.close()


def test_pictures_are_dark_on_a_dark_page(browser, built):
    """The same file, with a background of either kind."""
    drawing = (built / "results" / "embedded-tanh.svg").as_uri()
    found = {}
    for scheme in ("light", "dark"):
        opened = browser.new_page(color_scheme=scheme)
        opened.goto(drawing)
        paper = opened.locator("#patch_1 path")
        found[scheme] = paper.evaluate("e => getComputedStyle(e).fill")
        opened.close()
    assert found["light"] == "rgb(255, 255, 255)"
    assert max(map(int, re.findall(r"\d+", found["dark"]))) < 60


def test_the_search_finds_weight_decay(browser, address):
    opened = browser.new_page(viewport=DESKTOP)
    opened.goto(address)
    query = opened.locator('[data-md-component="search-query"]')
    query.click()  # the index is loaded on first use
    query.press_sequentially("weight decay")
    first = opened.locator(".md-search-result__item").first
    first.wait_for(timeout=1000 * LIMIT)
    assert "Weight decay" in first.inner_text()
    opened.close()


def test_pictures_are_small_enough_to_load(built):
    large = {path.name: path.stat().st_size for path in built.rglob("*.svg") if path.stat().st_size >= 300_000}
    assert large == {}


@pytest.mark.parametrize(
    ("remote", "link"),
    [("git@example.org:team/adaqn.git", "https://example.org/team/adaqn"), ("/srv/adaqn.git", None), (None, None)],
)
def test_the_site_links_to_where_it_was_cloned_from(tmp_path, remote, link):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# A page\n")
    hook = ROOT / "docs" / "repository.py"
    (tmp_path / "mkdocs.yml").write_text(
        f"site_name: a site\ntheme: {{name: material, font: false}}\nhooks: [{hook}]\n"
    )
    for command in (["init", "-q"], *([["remote", "add", "origin", remote]] if remote else [])):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "-q"], cwd=tmp_path, check=True, timeout=LIMIT)
    page = (tmp_path / "site" / "index.html").read_text()
    found = re.search(r'<a href="([^"]*)" title="Go to repository" class="md-source"', page)
    assert (found[1] if found else None) == link
