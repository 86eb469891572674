"""Every item that can be made is made at a tiny scale, and what is known of its numbers holds."""

import pytest

from fedmf.experiments.papers import ITEMS, Request, runner

# Those that train are in test_paper_studies.py: at this scale nothing is learned.
MADE = [name for name, item in ITEMS.items() if item.make is not None and item.state == "exact"]
# Above three seconds.
SLOW = {"banded-table-3", "multi-epoch-table-1", "denisov-table-2", "banded-table-5", "banded-sec-6"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in MADE])
def test_it_runs_and_holds(name, tmp_path):
    result = runner.run(ITEMS[name], Request(folder=tmp_path, scale="tiny"))
    assert result["holds"], result["verdict"]
    assert (tmp_path / "numbers.csv").read_text().count("\n") > 1
