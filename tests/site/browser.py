"""Looks at a site in headless Chromium, on narrow and wide screens and in the dark: `python
browser.py SITE` prints what is wrong.

Run by the site's environment, which has playwright. Pages are opened as files, as a reader without
a server does. Prints JSON: page -> list of complaints, for every page.
"""

import functools
import http.server
import json
import pathlib
import shutil
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the tests' own environment, which collects this file, has no playwright
    from playwright.sync_api import Browser, Page, Request

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# A telephone, windows beside another, screens.
WIDTHS = (390, 800, 1100, 1280, 1350, 1480, 1600, 1900)
COLUMNS_FROM = 1100  # from here on code and its output fit their column
# Words that a heading has: a page with such a heading is the first result.
SOUGHT = ("min_sep", "resume", "flower", "sensitivity")
IN_NO_HEADING = "tensorboard"  # This word is the negative control.
# Words that readers search for, and the page that answers them.
PAGE_BY_WORD = {
    "GPU": "faq",
    "PyTorch": "pytorch",
    "resume": "resume",
    "StackOverflow": "full_scale",
    "user-level": "guarantee",
}
WRONG_PAGE = ("PyTorch", "cluster")  # This word is the negative control.
FIRST_RESULTS = 3
# Of WCAG 2.1, criterion 1.4.3: the least contrast of text (AA).
CONTRAST = 4.5

WIDE = "() => document.documentElement.scrollWidth - window.innerWidth"

LONG = """() => {
  document.querySelectorAll('details').forEach(element => element.open = true);
  return [...document.querySelectorAll('pre')]
    .filter(element => element.checkVisibility() && element.scrollWidth > element.clientWidth + 1)
    .map(element => element.textContent.trim().slice(0, 60));
}"""

# Elements that hold text of their own, and the contrast of that text with the colours that lie
# under it.
DARK = """(least) => {
  const channels = colour => (colour.match(/[\\d.]+/g) || []).map(Number);
  const linear = c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => [r, g, b].map(c => linear(c / 255))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const over = (top, below) => {
    const a = top.length > 3 ? top[3] : 1;
    return [0, 1, 2].map(i => a * top[i] + (1 - a) * below[i]);
  };
  const under = element => {
    if (!element) return [255, 255, 255];
    const own = channels(getComputedStyle(element).backgroundColor);
    const behind = under(element.parentElement);
    return own.length > 3 && own[3] === 0 ? behind : over(own, behind);
  };
  const found = new Set();
  for (const element of document.querySelectorAll('body *')) {
    const texts = [...element.childNodes].filter(n => n.nodeType === 3);
    const text = texts.map(n => n.textContent.trim()).join('');
    const shown = element.checkVisibility({checkOpacity: true, checkVisibilityCSS: true});
    if (!text || !shown || element.closest('.headerlink, svg')) continue;
    const below = under(element), above = over(channels(getComputedStyle(element).color), below);
    const [low, high] = [light(above), light(below)].sort((a, b) => a - b);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < least) found.add(
      `${element.tagName} ${element.className}: "${text.slice(0, 30)}" ${contrast.toFixed(2)}`
    );
  }
  return [...found];
}"""


def program() -> str | None:
    """Returns the path of a Chromium on this machine, or None."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def pages_of(site: pathlib.Path) -> list[pathlib.Path]:
    """Returns the pages of a site, with one page of source code, since all of them have one
    layout.
    """
    pages = sorted(site.rglob("*.html"))
    sources = [path for path in pages if "_modules" in path.parts]
    return [path for path in pages if path not in sources[1:]]


def look(page: "Page", url: str) -> list[str]:
    """Returns the complaints about one page."""
    complaints: list[str] = []

    def requested(request: "Request") -> None:
        if not request.url.startswith(("file:", "data:", "about:")):
            complaints.append(f"asks {request.url}")

    page.on("request", requested)
    page.on(
        "console",
        lambda message: (
            complaints.append(f"console: {message.text}") if message.type == "error" else None
        ),
    )
    page.on("pageerror", lambda error: complaints.append(f"script: {error}"))
    page.goto(url, wait_until="load")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 844})
        excess = page.evaluate(WIDE)
        if excess > 0:
            complaints.append(f"scrolls sideways by {excess} pixels at {width}")
        if width >= COLUMNS_FROM:
            complaints += [
                f"runs off its column at {width}: {text}" for text in page.evaluate(LONG)
            ]
    complaints += [f"hard to read in the dark: {text}" for text in page.evaluate(DARK, CONTRAST)]
    return complaints


def search(page: "Page", address: str, word: str) -> list[str]:
    """Returns the complaints about a search, whose first result has to have the word in a
    heading.
    """
    page.goto(f"{address}?q={word}", wait_until="load")
    page.wait_for_selector("ul.search li")
    first_result = page.locator("ul.search li").first
    kind = first_result.get_attribute("class") or ""
    text = first_result.inner_text()
    if "kind-object" in kind or word not in text.lower():
        return [f"finds {text!r} first"]
    return []


def first_results(page: "Page", address: str, word: str, expected: str) -> list[str]:
    """Returns the complaints about a search whose first results have to include the expected page.

    Each result needs a snippet of text.
    """
    page.goto(f"{address}?q={word}", wait_until="load")
    page.wait_for_function("!document.querySelector('.search-summary').innerText.match(/^$/)")
    items = page.locator("ul.search > li").all()[:FIRST_RESULTS]
    pages = [(item.locator("a").first.get_attribute("href") or "").split(".")[0] for item in items]
    complaints = [] if expected in pages else [f"leads to {pages}"]
    for item, name in zip(items, pages, strict=True):
        snippet = item.locator("p.context").all_inner_texts()
        if not snippet or len(snippet[0]) < 40:
            complaints.append(f"has no snippet of {name}")
    return complaints


def searches(site: pathlib.Path, browser: "Browser") -> dict[str, list[str]]:
    """Returns the complaints about searches, from the disk and over http."""
    complaints_by_search = {}
    handler = functools.partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        addresses = {
            "disk": (site / "search.html").as_uri(),
            "http": f"http://127.0.0.1:{server.server_port}/search.html",
        }
        for kind, address in addresses.items():
            page = browser.new_page()
            page.set_default_timeout(300_000)
            for word in SOUGHT:
                complaints_by_search[f"{kind}: a search for {word}"] = search(page, address, word)
            for word, name in PAGE_BY_WORD.items():
                complaints = first_results(page, address, word, name)
                complaints_by_search[f"{kind}: a search for {word} finds {name}"] = complaints
            control_complaints = search(page, address, IN_NO_HEADING)
            complaints_by_search[f"{kind}: control"] = (
                [] if control_complaints else ["a wrong order is not seen"]
            )
            control_complaints = first_results(page, address, *WRONG_PAGE)
            complaints_by_search[f"{kind}: control of pages"] = (
                [] if control_complaints else ["a missing page is not seen"]
            )
            page.close()
        server.shutdown()
    return complaints_by_search


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves the site without a log."""

    def log_message(self, *message: object) -> None:
        """Says nothing."""


def main(site: pathlib.Path) -> None:
    """Looks at all pages, and searches."""
    from playwright.sync_api import sync_playwright

    complaints_by_page = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=["--no-sandbox"])
        context = browser.new_context(color_scheme="dark", offline=True)
        context.set_default_timeout(300_000)  # a busy machine is no failure
        for path in pages_of(site):
            page = context.new_page()
            complaints_by_page[str(path.relative_to(site))] = look(page, path.as_uri())
            page.close()
        if (site / "search.html").exists():
            complaints_by_page |= searches(site, browser)
        browser.close()
    print(json.dumps(complaints_by_page, indent=1))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
