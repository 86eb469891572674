"""The separation that a population allows: each of `population // cohort_size` rounds in a row can
have other clients.
"""


def check_separation(
    min_sep: int | None,
    *,
    population: int,
    cohort_size: int,
    rounds: int | None = None,
    schema: str = "min_sep",
    name: str = "min_sep",
) -> None:
    """Raises where the separation is missing, or too large for full cohorts of a population.

    Args:
      min_sep: None where it is missing.
      population, cohort_size, rounds: of the run; no rounds where the separation may be longer.
      schema: that needs the separation.
      name: of the argument that sets the separation; rounds with schema single.

    Raises:
      ValueError: with the separations that are possible.
    """
    if cohort_size > population:
        raise ValueError(
            f"cohort_size={cohort_size} is larger than population={population}: lower "
            f"`cohort_size` to at most {population}"
        )
    most = population // cohort_size
    clients = "1 client" if population == 1 else f"{population} clients"
    allowed = f"{clients} in cohorts of {cohort_size} allow `{name}` up to {most}"
    if min_sep is None:
        raise ValueError(
            f"`min_sep` is required with schema={schema!r}: {allowed}; pass a number in "
            f"1..{min(most, rounds or most)}"
        )
    if min_sep * cohort_size <= population:
        return
    ways_out = [f"lower `{name}` to at most {most}"]
    if population >= min_sep:
        ways_out.append(f"lower `cohort_size` to at most {population // min_sep}")
    raise ValueError(
        f"{name}={min_sep} is too large: {allowed}; {', '.join(ways_out)}, or raise the population "
        f"to {min_sep * cohort_size}"
    )
