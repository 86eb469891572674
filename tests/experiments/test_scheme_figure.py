"""The comparison of sampling schemes at a size for tests."""

import csv

import pytest

import fedmf
from fedmf.experiments import scheme_figure
from fedmf.privacy import monte_carlo
from fedmf.privacy.plan import per_query_noise_multiplier, unit_noise


@pytest.mark.slow
def test_quick_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(monte_carlo, "_SEARCH_WORK", 1e6)  # few numbers: seconds
    out = tmp_path / "schemes.png"
    assert scheme_figure.main(["--quick", "--out", str(out)]) == 0
    assert out.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with out.with_suffix(".csv").open() as file:
        rows = list(csv.DictReader(file))
    found = {(int(row["separation"]), row["scheme"], float(row["epsilon"])): row for row in rows}
    assert len(found) == len(rows) == 2 * len(scheme_figure.STYLES)
    for (separation, scheme, epsilon), row in found.items():
        error = float(row["rmse"])
        assert error > float(found[separation, scheme, 4.0]["rmse"]) or epsilon == 4
        if scheme == "cyclic Poisson":
            # A coin for each round shows more than one place of them.
            assert float(found[separation, "random allocation", epsilon]["rmse"]) < error


def test_a_point_is_that_of_calibration():
    points = scheme_figure.Setting(16, 4, (2.0,), lambda phrase: None).points()
    point = next(p for p in points if p.scheme == "random allocation")
    once = fedmf.Participation(rounds=16, schema="single")
    mechanism = fedmf.fit(fedmf.prefix_sum(16), once, family="banded", bands=point.bands)
    scheme = fedmf.CyclicShuffle(population=4000, cohort_size=1000)
    plan = fedmf.calibrate(mechanism, None, epsilon=2.0, delta=1e-6, sampling=scheme)
    assert point.noise_multiplier == pytest.approx(per_query_noise_multiplier(plan), rel=2e-3)
    assert point.rmse == pytest.approx(
        unit_noise(plan) * fedmf.rmse(mechanism, fedmf.prefix_sum(16), once), rel=2e-3
    )


def test_other_files_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        scheme_figure.main(["--quick", "--out", str(tmp_path / "figure.jpg")])
    assert stopped.value.code == 2
    assert "is no .png file in a folder that exists" in capsys.readouterr().err
