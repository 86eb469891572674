"""The statistic and the p-value of one statistical test in an audit."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of one statistical test, with its name, its statistic and its p-value.

    Attributes:
      name: the test, with the quantity that `statistic` holds.
      statistic: a ratio of variances, a correlation or a distance, for a reader.
      p_value: chance of a statistic at least as extreme under the claim; exact, or an upper bound
        where several tests are combined.
    """

    name: str
    statistic: float
    p_value: float
