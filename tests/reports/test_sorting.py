"""The report's tables sort in a real browser."""

import re
import subprocess

import pytest

from fedmf.reports import write_report
from tests.site.browser import program

CHROMIUM = program()
# Clicks on headings of the first table, and leaves its first column after each click in the page's
# title.
CLICKS = """<script>
const table = document.querySelector("#table-results");
const first = row => row.cells[0].textContent.trim().split(/\\s+/)[0];
const read = () => [...table.tBodies[0].rows].map(first).join(" ");
const seen = [read()];
for (const column of [0, 5, 6, 6]) {
  table.tHead.rows[0].cells[column].querySelector("button").click();
  seen.push(read());
}
document.title = seen.join("|");
</script></body>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_click_on_a_heading_sorts(demo_runs, tmp_path):
    path = write_report(demo_runs, tmp_path, title="sorted")
    path.write_text(path.read_text().replace("</body>", CLICKS))
    browser_flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
    ]
    completed_process = subprocess.run(
        [CHROMIUM, *browser_flags, path.as_uri()], capture_output=True, text=True, timeout=300
    )
    (page_title,) = re.findall(r"<title>(.*)</title>", completed_process.stdout)
    assert page_title.split("|") == [
        "No DP-FedAvg Tree Banded",  # as it was written
        "Banded DP-FedAvg No Tree",  # by name
        "Banded Tree DP-FedAvg No",  # by error; the run without noise has none
        # By accuracy: two seeds tell only DP-FedAvg apart, and the others keep their order.
        "DP-FedAvg Banded Tree No",
        "Banded Tree No DP-FedAvg",  # and the other way round
    ]
