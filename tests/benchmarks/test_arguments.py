import importlib

import pytest
from click.testing import CliRunner

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(
    ("benchmark", "option", "value"),
    [
        ("simulation", "--clients", "0"),
        ("simulation", "--passes", "0"),
        ("simulation", "--threads", "0"),
        ("aggregator", "--clients", "0"),
        ("aggregator", "--sentences", "0"),
        ("aggregator", "--passes", "-1"),
        ("noise", "--size", "0"),
        ("noise", "--strategy", "fastest"),
        ("two_runs", "--clients", "0"),
        ("two_runs", "--passes", "0"),
        ("two_runs", "--threads", "0"),
    ],
)
def test_a_benchmark_of_nothing_is_refused(benchmark, option, value):
    main = importlib.import_module(f"benchmarks.{benchmark}").main
    result = CliRunner().invoke(main, [option, value])
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': " in result.output
