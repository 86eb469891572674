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
    norms, drift, _ = capsys.readouterr().out.splitlines()
    assert len(set(norms.strip("[]").split(", "))) == 4
    assert float(drift) > 0
    plan = names["run"].plan
    assert plan["epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert plan["quantile_clipping"]["update_noise_multiplier"] > plan["noise_multiplier"]
