"""The result of one statistical test of an audit."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One test.

    Attributes:
      name: what was looked at.
      statistic: a number to read, named in `name`: a ratio of variances, a correlation, a distance.
      p_value: chance of a statistic at least as extreme under the claim; exact, or an upper bound
        where tests are put together.
    """

    name: str
    statistic: float
    p_value: float
