"""The snippet of docs/adaptive.md runs as printed."""

import pathlib
import re

import pytest

pytestmark = pytest.mark.tensorflow

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "adaptive.md").read_text()


@pytest.mark.slow
def test_the_snippet_runs_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    [snippet] = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    names = {"__name__": "adaptive"}
    exec(compile(snippet, "docs/adaptive.md", "exec"), names)
    _, drift, _ = capsys.readouterr().out.splitlines()
    assert float(drift) > 0
    norms = names["run"].table()["clip_norm"]
    blocks = [norms[start : start + 5] for start in range(0, 20, 5)]
    assert norms[0] == pytest.approx(names["config"].clip_norm)
    assert all(len(set(block)) == 1 for block in blocks)
    # A norm can come back, as the noise is counted in whole steps; that it never moves is as good
    # as impossible.
    assert len(set(norms)) > 1
    plan = names["run"].plan
    assert plan["epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert plan["quantile_clipping"]["update_noise_multiplier"] > plan["noise_multiplier"]
