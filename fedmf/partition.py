"""Makes clients of pooled examples as the literature does, and draws who has what.

Data with clients of their own need none of it: their ids are the `client_ids` of
`federated.Task.from_arrays`, as they are. A made client is nobody: a guarantee for it is no
guarantee for a person.

`dirichlet`, `shards` and `quantity_skew` give each example one client in 0..clients-1 and each
client at least one example. They are pure: the same arguments give the same clients.
"""

import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.files import checked_path, write_atomically
from fedmf.identifiers import is_missing
from fedmf.numpy_errors import with_numpy_defaults

__all__ = ["assign_clients", "dirichlet", "plot_label_counts", "quantity_skew", "shards"]

_MOST_LABELS = 10_000
_BARS = 100  # of a picture; of more clients it shows 1 in 2, in 3 and so on
_NAMED_LABELS = 64  # with colours of their own in a picture; the others are grey


@with_numpy_defaults
def dirichlet(labels: Any, clients: int, alpha: float, seed: int) -> np.ndarray:
    """Clients with label distributions from a Dirichlet distribution, and equal shares.

    Hsu et al. 2019, "Measuring the effects of non-identical data distribution for federated visual
    classification", Sec. 3: each client draws q ~ Dir(alpha p), where p are the shares of the
    labels among all examples, and then examples by q, without replacement, until it has its share.
    Clients draw one after the other, in the order of their ids. A label that has run out is left
    out of q: the first clients are exactly of this distribution, the last ones take what is left.

    alpha is the sum of the concentrations. Dir(a, ..., a), as in other papers and in Flower
    Datasets, is alpha = a times the number of labels, where these are equally frequent.

    Args:
      labels: one for each example, (n,), numbers or texts, none missing; at most 10,000 different.
      clients: their number, at most n.
      alpha: positive; near 0 a client has one label, and with a large one it is like all.
      seed: non-negative whole number.

    Returns:
      The clients of the examples, int64 (n,). Shares differ by one example at most.

    Raises:
      TypeError, ValueError: naming the argument, its value and the way out.

    >>> dirichlet(["cat", "cat", "dog", "dog"], clients=2, alpha=0.001, seed=0)
    array([0, 0, 1, 1])
    """
    names, codes = _coded("labels", labels)
    shares, alpha = _even(codes.size, "clients", clients), _alpha("alpha", alpha)
    if names.size > _MOST_LABELS:
        raise ValueError(
            f"labels has {names.size} different values, more than {_MOST_LABELS}: pass classes"
        )
    rng, left = _generator(seed), np.bincount(codes)
    prior, scale = left / codes.size, min(alpha, 1.0)
    dealt = []
    for client, share in enumerate(shares.tolist()):
        # Gamma(a) is Gamma(a + 1) U^(1 / a). Its logarithm times `scale` is finite for every alpha.
        log_q = scale * np.log(rng.standard_gamma(alpha * prior + 1))
        log_q -= scale / alpha * rng.standard_exponential(names.size) / prior
        # As a stream of draws from q of which those of labels that have run out are skipped. Each
        # pass ends the share or a label.
        while share:
            there = np.flatnonzero(left)
            with np.errstate(over="ignore", under="ignore"):
                q = np.exp((log_q[there] - log_q[there].max()) / scale)
            drawn = np.minimum(rng.multinomial(share, q / q.sum()), left[there])
            dealt.append(np.repeat(there * shares.size + client, drawn))
            left[there] -= drawn
            share -= int(drawn.sum())
    return _given(_by_label(codes, rng), np.sort(np.concatenate(dealt)) % shares.size)


@with_numpy_defaults
def shards(labels: Any, clients: int, per_client: int, seed: int) -> np.ndarray:
    """Clients of few labels each.

    McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized
    data", Sec. 3: the examples, sorted by label, are cut into clients * per_client shards, and each
    client gets per_client of them at random. Examples of one label are in random order.

    Args:
      labels: one for each example, (n,), numbers or texts, none missing.
      clients: their number.
      per_client: shards of a client; clients * per_client is at most n.
      seed: non-negative whole number.

    Returns:
      The clients of the examples, int64 (n,). Shards differ by one example at most.

    Raises:
      TypeError, ValueError: naming the argument, its value and the way out.

    >>> shards(["cat", "dog", "cat", "dog"], clients=2, per_client=1, seed=0)
    array([0, 1, 0, 1])
    """
    codes = _coded("labels", labels)[1]
    _even(codes.size, "clients", clients)
    pieces = clients * _per_client("per_client", per_client)
    if pieces > codes.size:
        raise ValueError(
            f"clients={clients} times per_client={per_client} are more shards than the "
            f"{codes.size} examples: ask for fewer"
        )
    sizes, rng = _even(codes.size, "shards", pieces), _generator(seed)
    holders = rng.permutation(pieces) % clients
    return _given(_by_label(codes, rng), np.repeat(holders, sizes))


@with_numpy_defaults
def quantity_skew(examples: int, clients: int, sigma: float, seed: int) -> np.ndarray:
    """Clients of log-normal sizes, whose examples are drawn from all.

    As in Acar et al. 2021, "Federated learning based on dynamic regularization" (FedDyn),
    unbalanced data. Each client has one example, and the others are shared out in proportion to
    exp(sigma z), z standard normal, rounded; the synthetic data of Li et al. 2020 (FedProx) have
    log-normal sizes above a least one as well.

    Args:
      examples: n, their number.
      clients: their number, at most n.
      sigma: the standard deviation of the logarithm of a size; 0 for equal shares (IID).
      seed: non-negative whole number.

    Returns:
      The clients of the examples, int64 (n,).

    Raises:
      TypeError, ValueError: naming the argument, its value and the way out.

    >>> np.bincount(quantity_skew(1000, clients=4, sigma=1.0, seed=0))
    array([226, 175, 378, 221])
    """
    hint = "pass the number of examples"
    examples = checks.integer("examples", examples, low=1, hint=hint)
    checks.fits_in_memory(f"examples={examples}", (examples,), copies=4, hint=hint)
    clients, sigma = _even(examples, "clients", clients).size, _sigma("sigma", sigma)
    rng = _generator(seed)
    z = rng.standard_normal(clients)
    with np.errstate(over="ignore"):
        weights = np.cumsum(np.exp(sigma * (z - z.max())))
    ends = np.rint(weights / weights[-1] * (examples - clients)).astype(np.int64)
    sizes = 1 + np.diff(ends, prepend=0)
    return _given(rng.permutation(examples), np.repeat(np.arange(clients), sizes))


def assign_clients(partition: str, labels: Any, clients: int, seed: int) -> np.ndarray:
    """The clients that a text says: dirichlet:ALPHA, shards:PER_CLIENT or quantity:SIGMA.

    Args:
      partition: such as "dirichlet:0.3".
      labels: one for each example, (n,).
      clients: their number.
      seed: non-negative whole number.

    Returns:
      The clients of the examples, int64 (n,).

    Raises:
      TypeError, ValueError: naming the argument, its value and the way out.

    >>> (assign_clients("shards:2", [0, 1] * 8, 4, 0) == shards([0, 1] * 8, 4, 2, 0)).all()
    True
    """
    name, number = _parsed("partition", partition)
    if name == "quantity":
        return quantity_skew(_coded("labels", labels)[1].size, clients, number, seed)
    return {"dirichlet": dirichlet, "shards": shards}[name](labels, clients, number, seed)


def check_text(name: str, value: Any) -> str:
    """The check of a field that holds a text for `deal`."""
    _parsed(name, value)
    return str(value)


@with_numpy_defaults
def plot_label_counts(labels: Any, client_ids: Any, path: str | os.PathLike[str]) -> pathlib.Path:
    """Draws who has what: a bar for each client, stacked of its examples of each label.

    Of more than 100 clients it shows 1 in 2, in 3 and so on, and says so. The 64 most
    frequent labels have a colour each, the others are grey together.

    Args:
      labels: one for each example, (n,).
      client_ids: one for each example, (n,), numbers or texts.
      path: a .png file to write; its folder must exist.

    Returns:
      The path.

    Raises:
      TypeError, ValueError: naming the argument, its value and the way out.
      OSError: the file cannot be written.
    """
    path = checked_path("path", path, hint="name a PNG file")
    if path.suffix != ".png":
        raise ValueError(f"path={str(path)!r} does not end in .png: name a PNG file")
    names, codes = _coded("labels", labels)
    ids, owners = _coded("client_ids", client_ids)
    if codes.shape != owners.shape:
        raise ValueError(
            f"client_ids has {owners.size} entries and labels {codes.size}: give one for each "
            "example"
        )
    write_atomically(path, _picture_of(names, codes, ids, owners))
    return path


def _picture_of(names: np.ndarray, codes: np.ndarray, ids: np.ndarray, owners: np.ndarray) -> bytes:
    """Returns the PNG file of `plot_label_counts`, for labels and client ids that are coded."""
    from fedmf.reports import canvas  # isort: skip  (before matplotlib, whose import it fixes)
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    step = -(-ids.size // _BARS)
    bars = -(-ids.size // step)
    frequent = np.sort(np.argsort(-np.bincount(codes), kind="stable")[:_NAMED_LABELS])
    place = np.full(names.size, frequent.size)  # of a label in a bar; the others come last
    place[frequent] = np.arange(frequent.size)
    counts = np.zeros((bars, frequent.size + 1), np.int64)
    shown = owners % step == 0
    np.add.at(counts, (owners[shown] // step, place[codes[shown]]), 1)
    legend = [_shown(name) for name in names[frequent]]
    columns = 10 if max(map(len, legend)) < 5 else 3
    colors = [*_colors(len(legend)), "#c8c8c8"]
    legend += ["others"] * (names.size > len(legend))
    with canvas.canvas(1.1 + 0.1 * max(bars, 8) + 0.2 * -(-len(legend) // columns), "") as (
        figure,
        png,
    ):
        ax = figure.subplots()
        bar, label = np.nonzero(counts)
        right, low = np.cumsum(counts, axis=1)[bar, label], bar - 0.43
        left, high = right - counts[bar, label], bar + 0.43
        corners = [(left, low), (right, low), (right, high), (left, high)]
        boxes = np.moveaxis(np.array(corners), -1, 0)
        ax.add_collection(PolyCollection(list(boxes), facecolors=[colors[k] for k in label]))
        of = f"1 in {step} of " if step > 1 else ""
        ax.set(
            title=f"Who has what: {of}{ids.size:,} clients, {codes.size:,} examples",
            xlabel="examples",
            ylabel="client",
            xlim=(0, right.max()),
            ylim=(bars - 0.4, -0.6),
        )
        ax.xaxis.set_major_locator(canvas.whole_steps(8))
        ticks = np.arange(0, bars, max(1, -(-bars // 12)))
        ax.set_yticks(ticks, [_shown(ids[step * tick]) for tick in ticks], parse_math=False)
        ax.grid(visible=False, axis="y")
        explained = figure.legend(
            [Patch(color=color) for color in colors[: len(legend)]],
            legend,
            loc="outside upper center",
            ncols=columns,
            handlelength=1.0,
        )
        for text in explained.get_texts():
            text.set_parse_math(False)  # a label may hold $
    return png.getvalue()


def _shown(value: Any) -> str:
    return f"{value!s:.24}"


def _colors(count: int) -> list[Any]:
    """As many colours, one for each label."""
    from matplotlib import colormaps

    if count <= 10:
        return [colormaps["tab10"](k) for k in range(count)]
    return [*colormaps["turbo"](np.linspace(0.04, 0.96, count))]


def _alpha(name: str, value: Any) -> float:
    return checks.positive(name, value, "use a concentration such as 0.3")


def _sigma(name: str, value: Any) -> float:
    return checks.positive(name, value, "use a standard deviation such as 1, or 0", allow_zero=True)


def _per_client(name: str, value: Any) -> int:
    return checks.integer(name, value, low=1, hint="use a number of shards such as 2")


_PARTITIONS: dict[str, tuple[str, type, Callable[[str, Any], Any]]] = {
    "dirichlet": ("alpha", float, _alpha),
    "shards": ("per_client", int, _per_client),
    "quantity": ("sigma", float, _sigma),
}


def _parsed(name: str, text: Any) -> tuple[str, Any]:
    """The partition that a text names, and its number, checked."""
    if not isinstance(text, str):
        raise TypeError(f"{name}={text!r} is a {type(text).__name__}: write dirichlet:0.3")
    kind, _, number = text.partition(":")
    try:
        argument, of, check = _PARTITIONS[kind]
        value = of(number)
    except (KeyError, ValueError):
        raise ValueError(
            f"{name}={text!r} names no partition and its number: write dirichlet:ALPHA, "
            "shards:PER_CLIENT or quantity:SIGMA, such as dirichlet:0.3 or shards:2"
        ) from None
    try:
        return kind, check(argument, value)
    except ValueError as error:
        raise ValueError(f"{name}={text!r}: {error}") from None


def _generator(seed: Any) -> np.random.Generator:
    hint = "use a non-negative whole number"
    return np.random.default_rng(checks.integer("seed", seed, low=0, hint=hint))


def _even(examples: int, name: str, parts: Any) -> np.ndarray:
    """The sizes of `parts` equal parts of the examples, the larger ones first."""
    hint = f"there are {examples} examples, and each needs one at least"
    parts = checks.integer(name, parts, low=1, high=examples, hint=hint)
    return examples // parts + (np.arange(parts) < examples % parts)


def _by_label(codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The places of the examples, sorted by label, in random order within each."""
    shuffled = rng.permutation(codes.size)
    return shuffled[np.argsort(codes[shuffled], kind="stable")]


def _given(order: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """owners[i] as the owner of example order[i]."""
    given = np.empty(order.size, np.int64)
    given[order] = owners
    return given


def _coded(name: str, values: Any) -> tuple[np.ndarray, np.ndarray]:
    """The different values, sorted, and the place of each value among them."""
    # As an array of texts, NaN among texts would be the text "nan".
    array = values if hasattr(values, "__array__") else np.asarray(values, object)
    array = np.ma.asarray(array) if np.ma.isMaskedArray(array) else np.asarray(array)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"{name} has the shape {array.shape}: pass one for each example, (n,)")
    if np.ma.isMaskedArray(array) or array.dtype.kind in "fcmMO":
        for place, value in enumerate(array.tolist()):
            if is_missing(value):
                raise ValueError(
                    f"{name}[{place}]={value!r} is missing: leave the example out, or label it"
                )
    try:
        different, codes = np.unique(np.asarray(array), return_inverse=True)
    except TypeError as error:
        raise TypeError(
            f"{name} mixes kinds that have no order ({error}): write all of them as texts"
        ) from error
    return different, codes
