"""The site builds without a warning, has every public name, asks nothing of other machines, and can
be read on a telephone in the dark.
"""

import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import tomllib

import pytest

import fedmf
from tests.site.browser import PAGE_BY_WORD, SOUGHT, pages_of

ROOT = pathlib.Path(__file__).parents[2]
PYTHON = ROOT / ".venv-docs" / "bin" / "python"
BROWSER = pathlib.Path(__file__).with_name("browser.py")
HAS_BROWSER = any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome")))

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2700)]  # on a busy machine


def build(source, target):
    """Runs Sphinx with the project's configuration, and returns the finished process."""
    assert PYTHON.exists(), "make docs, or make test-all, installs the site's environment"
    command = [PYTHON, "-m", "sphinx", "-W", "--keep-going", "--nitpicky", "-q", "-b", "html"]
    paths = ["-c", ROOT / "docs", "-d", f"{target}-doctrees", source, target]
    return subprocess.run([*command, *paths], capture_output=True, text=True, cwd=ROOT)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    target = tmp_path_factory.mktemp("site") / "html"
    finished_process = build(ROOT / "docs", target)
    assert finished_process.returncode == 0, finished_process.stderr
    return target


class Page(html.parser.HTMLParser):
    """Anchors of a page, and the addresses that it loads."""

    def __init__(self, text):
        super().__init__()
        self.anchors = set()
        self.loads = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag != "a":
            self.loads += [
                values[name] for name in ("src", "href", "srcset", "data") if values.get(name)
            ]


def elsewhere(addresses):
    return [address for address in addresses if re.match(r"\s*(\w+:)?//", address)]


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path.read_text()) for path in pages_of(site)}


def test_pages_load_nothing_from_elsewhere(site, pages):
    assert len(pages) > 30
    assert (site / "built.html").exists()
    loads_by_page = {str(path): elsewhere(page.loads) for path, page in pages.items()}
    assert {path: loads for path, loads in loads_by_page.items() if loads} == {}
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*[\"']?(?:\w+:)?//", style.read_text()), style


@pytest.mark.parametrize(
    "text",
    ['<script src="https://a.b/c.js">', '<link href="//a.b/c.css">', '<img src="http://a.b">'],
)
def test_resources_of_other_machines_are_detected(text):
    assert elsewhere(Page(text).loads)


def test_the_reference_has_every_public_name(pages):
    anchors = set().union(
        *(page.anchors for path, page in pages.items() if path.parent.name == "reference")
    )
    public = re.findall(
        r'"(\w+)"', (ROOT / "fedmf/federated/__init__.py").read_text().partition("__all__")[2]
    )
    assert len(public) > 10
    assert {f"fedmf.{name}" for name in fedmf.__all__} | {
        f"fedmf.federated.{name}" for name in public
    } <= anchors


def test_each_executed_tutorial_can_be_downloaded_as_a_notebook(site):
    executed_pages = [
        path.relative_to(ROOT / "docs").with_suffix("")
        for path in (ROOT / "docs" / "tutorials").glob("*.md")
        if path.read_text().startswith("---\nfile_format: mystnb")
    ]
    assert len(executed_pages) >= 3
    for page in executed_pages:
        notebook = json.loads((site / f"{page}.ipynb").read_text())
        code = "".join("".join(cell["source"]) for cell in notebook["cells"])
        assert "extensions.printed" not in code, page
        assert f'href="{page.name}.ipynb" download' in (site / f"{page}.html").read_text()


def test_a_click_on_a_picture_shows_it_in_full_size(site):
    for page in ("index", "papers", "tutorials/ten_pictures"):
        text = (site / f"{page}.html").read_text().partition("<article")[2]
        pictures = re.findall(r"(<a [^>]*>)?\s*<img", text)
        assert pictures
        assert all(pictures), page


def test_the_site_names_its_version_and_links_to_the_sources_of_names(site):
    assert f"fedmf {VERSION}" in (site / "index.html").read_text()
    assert "_modules/fedmf/" in (site / "reference" / "mechanisms.html").read_text()


def test_unknown_references_and_cells_that_fail_end_the_build(tmp_path):
    kernel = "---\nfile_format: mystnb\nkernelspec:\n  name: python3\n---\n\n"
    wrong_text = "{py:func}`fedmf.nowhere`, [a page](nowhere.md) and [a section](other.md#nowhere)"
    (tmp_path / "other.md").write_text("# B\n")
    (tmp_path / "index.md").write_text(
        f"{kernel}# A\n\n{wrong_text}\n\n```{{code-cell}} ipython3\nassert 1 == 2\n```\n"
    )
    finished_process = build(tmp_path, tmp_path / "html")
    assert finished_process.returncode != 0
    for what in ("fedmf.nowhere", "nowhere.md", "doc 'other': 'nowhere'", "assert 1 == 2"):
        assert re.search(rf"WARNING: .*{what}", finished_process.stderr, re.S), what


def looked_at(folder):
    environment = {
        name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
    }
    finished_process = subprocess.run(
        [PYTHON, BROWSER, folder], capture_output=True, text=True, env=environment
    )
    assert finished_process.returncode == 0, finished_process.stderr
    return json.loads(finished_process.stdout)


needs_a_browser = pytest.mark.skipif(
    not HAS_BROWSER, reason="no Chromium on this machine: apt-get install chromium"
)


@needs_a_browser
def test_pages_and_searches_have_no_complaint_in_a_browser(site, pages):
    complaints_by_page = looked_at(site)
    searches = [name for name in complaints_by_page if "search for" in name or "control" in name]
    assert len(searches) == 2 * (len(SOUGHT) + len(PAGE_BY_WORD) + 2)
    assert len(complaints_by_page) == len(pages) + len(searches)
    assert {page: complaints for page, complaints in complaints_by_page.items() if complaints} == {}


# Complaint -> the body of a page that has it.
WRONG = {
    "script: ": "<script>nothing.at.all</script>",
    "console: no": "<script>console.error('no')</script>",
    "asks http://localhost:9/a.png": '<img src="http://localhost:9/a.png">',
    "scrolls sideways by": '<div style="width: 500px">wide</div>',
    "runs off its column at 1280: xxx": f'<pre style="overflow-x: auto">{"x" * 200}</pre>',
    "hard to read in the dark: P": (
        '<div style="background: #111"><p style="color: #333">dim</p></div>'
    ),
}


@pytest.fixture(scope="module")
def wrong_pages(tmp_path_factory):
    """Returns the browser's complaints about each page of WRONG, all from one start of the
    browser.
    """
    folder = tmp_path_factory.mktemp("wrong")
    head = '<meta name="viewport" content="width=device-width">'
    for number, body in enumerate(WRONG.values()):
        (folder / f"{number}.html").write_text(head + body)
    complaints_by_page = looked_at(folder)
    return {
        complaint: complaints_by_page[f"{number}.html"] for number, complaint in enumerate(WRONG)
    }


@needs_a_browser
@pytest.mark.parametrize("complaint", WRONG)
def test_mistakes_of_a_page_are_detected(complaint, wrong_pages):
    assert any(page_complaint.startswith(complaint) for page_complaint in wrong_pages[complaint])
