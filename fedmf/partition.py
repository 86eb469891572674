"""Partitions of a pooled data set into synthetic clients by the methods of the literature, and a
plot of the result.

Data with real clients need no partition: pass their ids as the `client_ids` of
`federated.Task.from_arrays`. A synthetic client is not a person, and its guarantee protects nobody.

`dirichlet`, `shards` and `quantity_skew` assign each example to one client in 0..clients-1, and at
least one example to each client. They are pure functions of their arguments.
"""

import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedmf import checks
from fedmf.files import checked_path, write_atomically
from fedmf.identifiers import is_missing
from fedmf.numpy_errors import with_numpy_defaults

__all__ = ["assign_clients", "dirichlet", "picture", "quantity_skew", "shards"]

_MAX_LABELS = 10_000


@with_numpy_defaults
def dirichlet(labels: Any, clients: int, alpha: float, seed: int) -> np.ndarray:
    """Partitions examples into clients of equal size, whose shares of the labels are
    Dirichlet-distributed.

    Hsu et al. 2019, "Measuring the effects of non-identical data distribution for federated visual
    classification", Sec. 3: each client draws q ~ Dir(alpha p), where p are the shares of the
    labels among all examples, and then examples by q, without replacement. Clients draw one after
    the other, in the order of their ids. A label without remaining examples is removed from q. So
    the first clients have exactly this distribution, and the last ones get the remaining examples.

    alpha is the sum of the concentrations. Dir(a, ..., a), as in other papers and in Flower
    Datasets, is alpha = a times the number of labels if these are equally frequent.

    Args:
      labels: one for each example, (n,), numbers or texts, none missing; at most 10,000 distinct.
      clients: number of clients, at most n.
      alpha: positive. Near 0 a client has one label; if large, its label shares are those of all.
      seed: non-negative whole number.

    Returns:
      The client of each example, int64 (n,). The numbers of examples differ by at most one.

    Raises:
      TypeError: an argument is not of its type.
      ValueError: labels are missing or more than 10,000 distinct, `clients` is below 1 or above the
        number of examples, `alpha` is not positive, or `seed` is negative.

    >>> dirichlet(["cat", "cat", "dog", "dog"], clients=2, alpha=0.001, seed=0)
    array([0, 0, 1, 1])
    """
    unique_labels, codes = _encode("labels", labels)
    client_sizes = _equal_sizes(codes.size, "clients", clients)
    alpha = _check_alpha("alpha", alpha)
    if unique_labels.size > _MAX_LABELS:
        raise ValueError(
            f"labels has {unique_labels.size} different values, more than {_MAX_LABELS}: pass "
            "classes"
        )
    rng = _generator(seed)
    remaining_counts = np.bincount(codes)
    label_shares = remaining_counts / codes.size
    log_scale = min(alpha, 1.0)
    assignments = []
    for client, num_missing in enumerate(client_sizes.tolist()):
        # The shares q of the labels are independent Gamma(a) draws divided by their sum, so they
        # have a Dirichlet distribution. A Gamma(a) draw is computed as Gamma(a + 1) U^(1 / a) with
        # U uniform, whose scaled logarithm is finite for every alpha.
        log_q = log_scale * np.log(rng.standard_gamma(alpha * label_shares + 1))
        log_q -= log_scale / alpha * rng.standard_exponential(unique_labels.size) / label_shares
        # The loop has the same distribution as drawing one label at a time from q, and skipping
        # labels that have no more examples.
        while num_missing:
            remaining_labels = np.flatnonzero(remaining_counts)
            with np.errstate(over="ignore", under="ignore"):
                q = np.exp((log_q[remaining_labels] - log_q[remaining_labels].max()) / log_scale)
            drawn_counts = rng.multinomial(num_missing, q / q.sum())
            drawn_counts = np.minimum(drawn_counts, remaining_counts[remaining_labels])
            assignments.append(
                np.repeat(remaining_labels * client_sizes.size + client, drawn_counts)
            )
            remaining_counts[remaining_labels] -= drawn_counts
            num_missing -= int(drawn_counts.sum())
    clients_by_label = np.sort(np.concatenate(assignments)) % client_sizes.size
    return _scatter(_order_by_label(codes, rng), clients_by_label)


@with_numpy_defaults
def shards(labels: Any, clients: int, per_client: int, seed: int) -> np.ndarray:
    """Partitions examples into clients that have few labels each.

    McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized
    data", Sec. 3: the examples, sorted by label, are cut into clients * per_client shards, and each
    client gets per_client of them at random. Examples of one label are in random order.

    Args:
      labels: one for each example, (n,), numbers or texts, none missing.
      clients: number of clients.
      per_client: shards of a client; clients * per_client is at most n.
      seed: non-negative whole number.

    Returns:
      The client of each example, int64 (n,). The sizes of shards differ by at most one example.

    Raises:
      TypeError: an argument is not of its type.
      ValueError: labels are missing, there are more shards than examples, a number is below 1, or
        `seed` is negative.

    >>> shards(["cat", "dog", "cat", "dog"], clients=2, per_client=1, seed=0)
    array([0, 1, 0, 1])
    """
    _, codes = _encode("labels", labels)
    _equal_sizes(codes.size, "clients", clients)
    num_shards = clients * _check_per_client("per_client", per_client)
    if num_shards > codes.size:
        raise ValueError(
            f"clients={clients} times per_client={per_client} are more shards than the "
            f"{codes.size} examples: ask for fewer"
        )
    shard_sizes = _equal_sizes(codes.size, "shards", num_shards)
    rng = _generator(seed)
    shard_clients = rng.permutation(num_shards) % clients
    return _scatter(_order_by_label(codes, rng), np.repeat(shard_clients, shard_sizes))


@with_numpy_defaults
def quantity_skew(examples: int, clients: int, sigma: float, seed: int) -> np.ndarray:
    """Partitions examples at random into clients whose numbers of examples are log-normal.

    The sizes are those of the unbalanced data of Acar et al. 2021, "Federated learning based on
    dynamic regularization" (FedDyn). Each client has one example, and the remaining ones are
    assigned in proportion to exp(sigma z), z standard normal, rounded. The synthetic data of Li et
    al. 2020 (FedProx) have log-normal sizes above a minimum as well.

    Args:
      examples: number of examples, n.
      clients: number of clients, at most n.
      sigma: standard deviation of the logarithm of a size; 0 for equal sizes (IID).
      seed: non-negative whole number.

    Returns:
      The client of each example, int64 (n,).

    Raises:
      TypeError: an argument is not of its type.
      ValueError: there are more clients than examples, a number of them is below 1, or `sigma` or
        `seed` is negative.

    >>> np.bincount(quantity_skew(1000, clients=4, sigma=1.0, seed=0))
    array([226, 175, 378, 221])
    """
    hint = "pass the number of examples"
    examples = checks.integer("examples", examples, low=1, hint=hint)
    checks.fits_in_memory(f"examples={examples}", (examples,), copies=4, hint=hint)
    clients = _equal_sizes(examples, "clients", clients).size
    sigma = _check_sigma("sigma", sigma)
    rng = _generator(seed)
    normal_draws = rng.standard_normal(clients)
    with np.errstate(over="ignore"):
        cumulative_weights = np.cumsum(np.exp(sigma * (normal_draws - normal_draws.max())))
    cumulative_shares = cumulative_weights / cumulative_weights[-1]
    client_ends = np.rint(cumulative_shares * (examples - clients)).astype(np.int64)
    client_sizes = 1 + np.diff(client_ends, prepend=0)
    return _scatter(rng.permutation(examples), np.repeat(np.arange(clients), client_sizes))


def assign_clients(partition: str, labels: Any, clients: int, seed: int) -> np.ndarray:
    """Partitions examples into clients by the method that a text such as "dirichlet:0.3" names.

    Args:
      partition: dirichlet:ALPHA, shards:PER_CLIENT or quantity:SIGMA, such as "dirichlet:0.3".
      labels: one for each example, (n,).
      clients: number of clients.
      seed: non-negative whole number.

    Returns:
      The client of each example, int64 (n,).

    Raises:
      TypeError: an argument is not of its type.
      ValueError: `partition` names no method, its number is out of range, or the method refuses the
        other arguments.

    >>> (assign_clients("shards:2", [0, 1] * 8, 4, 0) == shards([0, 1] * 8, 4, 2, 0)).all()
    True
    """
    kind, number = _parse_partition("partition", partition)
    if kind == "quantity":
        _, codes = _encode("labels", labels)
        return quantity_skew(codes.size, clients, number, seed)
    return {"dirichlet": dirichlet, "shards": shards}[kind](labels, clients, number, seed)


def check_text(name: str, value: Any) -> str:
    """Checks that the argument is a text that `assign_clients` accepts as a partition, and returns
    it.
    """
    _parse_partition(name, value)
    return str(value)


@with_numpy_defaults
def picture(labels: Any, client_ids: Any, path: str | os.PathLike[str]) -> pathlib.Path:
    """Plots for each client a bar with its number of examples of each label, and writes the figure
    to a file.

    With more than 100 clients the plot shows every second client, every third and so on, and says
    so. The 64 most frequent labels have distinct colours, the others are grey.

    Args:
      labels: one for each example, (n,).
      client_ids: one for each example, (n,), numbers or texts.
      path: a .png file to write; its folder must exist.

    Returns:
      The path.

    Raises:
      TypeError: an argument is not of its type.
      ValueError: `path` does not end in .png, a label or an id is missing, or their numbers differ.
      OSError: the file cannot be written.
    """
    path = checked_path("path", path, hint="name a PNG file")
    if path.suffix != ".png":
        raise ValueError(f"path={str(path)!r} does not end in .png: name a PNG file")
    unique_labels, label_codes = _encode("labels", labels)
    unique_ids, client_codes = _encode("client_ids", client_ids)
    if label_codes.shape != client_codes.shape:
        raise ValueError(
            f"client_ids has {client_codes.size} entries and labels {label_codes.size}: give one "
            "for each example"
        )
    from fedmf.reports.label_bars import count_labels, draw_label_bars

    label_counts = count_labels(unique_labels, label_codes, unique_ids, client_codes)
    write_atomically(path, draw_label_bars(label_counts))
    return path


def _check_alpha(name: str, value: Any) -> float:
    """Checks that the argument is a concentration of a Dirichlet distribution, and returns it."""
    return checks.positive(name, value, "use a concentration such as 0.3")


def _check_sigma(name: str, value: Any) -> float:
    """Checks that the argument is a standard deviation, which may be 0, and returns it."""
    return checks.positive(name, value, "use a standard deviation such as 1, or 0", allow_zero=True)


def _check_per_client(name: str, value: Any) -> int:
    """Checks that the argument is a number of shards of a client, and returns it."""
    return checks.integer(name, value, low=1, hint="use a number of shards such as 2")


class _Parameter(NamedTuple):
    """The parameter of a kind of partition, such as alpha of dirichlet:ALPHA.

    Attributes:
      name: name of the argument of the partition's function.
      kind: type of the parameter, int or float.
      check: (name, value) -> the checked value.
    """

    name: str
    kind: type
    check: Callable[[str, Any], Any]


_PARAMETERS = {
    "dirichlet": _Parameter("alpha", float, _check_alpha),
    "shards": _Parameter("per_client", int, _check_per_client),
    "quantity": _Parameter("sigma", float, _check_sigma),
}


def _parse_partition(name: str, text: Any) -> tuple[str, Any]:
    """Parses the text of a partition such as "dirichlet:0.3". Returns the kind and the checked
    parameter.
    """
    if not isinstance(text, str):
        raise TypeError(f"{name}={text!r} is a {type(text).__name__}: write dirichlet:0.3")
    kind, _, number = text.partition(":")
    try:
        parameter = _PARAMETERS[kind]
        parsed_parameter = parameter.kind(number)
    except (KeyError, ValueError):
        raise ValueError(
            f"{name}={text!r} names no partition and its number: write dirichlet:ALPHA, "
            "shards:PER_CLIENT or quantity:SIGMA, such as dirichlet:0.3 or shards:2"
        ) from None
    try:
        return kind, parameter.check(parameter.name, parsed_parameter)
    except ValueError as error:
        raise ValueError(f"{name}={text!r}: {error}") from None


def _generator(seed: Any) -> np.random.Generator:
    """Returns a random generator for a seed, after checking the seed."""
    hint = "use a non-negative whole number"
    return np.random.default_rng(checks.integer("seed", seed, low=0, hint=hint))


def _equal_sizes(examples: int, name: str, num_groups: Any) -> np.ndarray:
    """Returns the sizes of groups into which examples are divided as equally as possible, the
    larger ones first.

    Args:
      examples: number of examples.
      name: name of the argument `num_groups` in errors.
      num_groups: number of groups, at most the number of examples.
    """
    hint = f"there are {examples} examples, and each needs one at least"
    num_groups = checks.integer(name, num_groups, low=1, high=examples, hint=hint)
    return examples // num_groups + (np.arange(num_groups) < examples % num_groups)


def _order_by_label(codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns the indices of all examples sorted by label; examples of the same label are in random
    order.
    """
    shuffled_indices = rng.permutation(codes.size)
    return shuffled_indices[np.argsort(codes[shuffled_indices], kind="stable")]


def _scatter(order: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """Returns the client of each example, where example order[i] belongs to clients[i]."""
    client_of_example = np.empty(order.size, np.int64)
    client_of_example[order] = clients
    return client_of_example


def _encode(name: str, values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct values of an array in ascending order, and for each entry of the array
    the index of its value among them.
    """
    # numpy would turn NaN among texts into the text "nan", unless the dtype is object.
    values_array = values if hasattr(values, "__array__") else np.asarray(values, object)
    is_masked = np.ma.isMaskedArray(values_array)
    values_array = np.ma.asarray(values_array) if is_masked else np.asarray(values_array)
    if values_array.ndim != 1 or not values_array.size:
        raise ValueError(
            f"{name} has the shape {values_array.shape}: pass one for each example, (n,)"
        )
    if is_masked or values_array.dtype.kind in "fcmMO":
        for index, value in enumerate(values_array.tolist()):
            if is_missing(value):
                raise ValueError(
                    f"{name}[{index}]={value!r} is missing: leave the example out, or label it"
                )
    try:
        unique_values, codes = np.unique(np.asarray(values_array), return_inverse=True)
    except TypeError as error:
        raise TypeError(
            f"{name} mixes kinds that have no order ({error}): write all of them as texts"
        ) from error
    return unique_values, codes
