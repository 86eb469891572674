"""The snippets of docs/pipeline.md run as printed, one after the other."""

import asyncio
import pathlib
import re

import pytest

pytestmark = pytest.mark.tensorflow

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()


@pytest.mark.slow
def test_the_snippets_run_as_printed(capfd):
    # Which asyncio.run takes away, and TFF asks for
    asyncio.set_event_loop(asyncio.new_event_loop())
    snippets = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(snippets) == 7
    names = {"__name__": "pipeline"}
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"docs/pipeline.md snippet {number}", "exec"), names)
    assert names["mean"].shape == [3]
    assert len(names["data_of_round_3"]) == 2
    assert len(names["source"].controller.ledger) == 4
    printed = capfd.readouterr().out
    assert "('clip_fraction', 0.5)" in printed
    assert len(names["run"].metrics) == 12
    assert names["model"].count_params() == 4
