"""Addresses of remote workers: what is taken, and what is refused by name."""

import pytest

from fedmf.runs.worker_addresses import worker_addresses


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (" a.example:1 , b:65535", ("a.example:1", "b:65535")),
        (["10.0.0.2:80", "[fe80::1]:80"], ("10.0.0.2:80", "[fe80::1]:80")),
    ],
)
def test_addresses_are_kept_in_order(given, expected):
    assert worker_addresses(given, "tff-remote") == expected


@pytest.mark.parametrize(
    "given",
    [
        "localhost:08000", "a:" + 5000 * "1",
        "", "localhost", "localhost:", ":8000", "localhost:0", "localhost:65536", "localhost:-1", "localhost:80x", "localhost:٣",
        "a:1,,b:2", "a:1,", "::1:8000", "[::1]", "[]:80", "[host]:80", "http://a:80", "a b:80", "grpc@a:80", "a:1,a:1",
    ],
)  # fmt: skip
def test_malformed_addresses_are_refused(given):
    with pytest.raises(ValueError, match="workers"):
        worker_addresses(given, "tff-remote")
    with pytest.raises(TypeError, match="workers"):
        worker_addresses([8000], "tff-remote")


@pytest.mark.parametrize("execution", ["fast", "tff"])
def test_workers_belong_to_one_execution(execution):
    assert worker_addresses(None, execution) == ()
    with pytest.raises(ValueError, match=f"execution={execution}"):
        worker_addresses("a:1", execution)
    with pytest.raises(ValueError, match="names no worker"):
        worker_addresses(None, "tff-remote")
