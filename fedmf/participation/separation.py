"""The check that a population of clients is large enough for a planned separation.

At most `population // cohort_size` consecutive rounds can have disjoint full cohorts.
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
    """Raises ValueError if min_sep is missing, or so large that the population cannot fill every
    cohort.

    Args:
      min_sep: the separation; None if it is missing.
      population: number of clients.
      cohort_size: clients of a round.
      rounds: length of the run; None if the separation may be longer.
      schema: name of the schema that needs the separation.
      name: the argument that sets the separation, "rounds" for schema "single".
    """
    if cohort_size > population:
        raise ValueError(
            f"cohort_size={cohort_size} is larger than population={population}: lower "
            f"`cohort_size` to at most {population}"
        )
    max_separation = population // cohort_size
    clients_text = "1 client" if population == 1 else f"{population} clients"
    allowed_text = (
        f"{clients_text} in cohorts of {cohort_size} allow `{name}` up to {max_separation}"
    )
    if min_sep is None:
        raise ValueError(
            f"`min_sep` is required with schema={schema!r}: {allowed_text}; pass a number in "
            f"1..{min(max_separation, rounds or max_separation)}"
        )
    if min_sep * cohort_size <= population:
        return
    ways_out = [f"lower `{name}` to at most {max_separation}"]
    if population >= min_sep:
        ways_out.append(f"lower `cohort_size` to at most {population // min_sep}")
    raise ValueError(
        f"{name}={min_sep} is too large: {allowed_text}; {', '.join(ways_out)}, or raise the "
        f"population to {min_sep * cohort_size}"
    )
