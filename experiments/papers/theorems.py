"""Numbered theorems and algorithms of the papers, with what each says in our words and the lines of
code that cite it.

A citation is a paper and a number, as in "banded paper, Thm. 2" or "Alg. 4 of the banded paper".
"""

import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import fedmf

# Each line has three parts: the short name of a paper, the number of a theorem or algorithm in it,
# and a summary of its content.
_STATEMENTS = """
denisov | Prop. 2.1 | Without delta, a guarantee for fixed inputs holds for adaptive ones.
denisov | Thm. 2.1 | With Gaussian noise it does with delta too, for a lower-triangular query.
denisov | Prop. 2.2 | Every factorisation has a lower-triangular one of the same mechanism.
denisov | Def. 3.1 | Neighbouring data: one row differs, by a bounded norm.
denisov | Thm. 3.1 | rho-zCDP of C G + Z from the largest column norm of C.
denisov | Thm. 3.2 | The optimum for one epoch is the fixed point of phi.
denisov | Thm. 3.3 | phi is a contraction near its fixed point.
denisov | Alg. 1 | SGD on released sums B (C G + Z).
denisov | Alg. 2 | Momentum as a post-processing of released sums.
denisov | Thm. 4.1 | Algorithm 1 is as private as one Gaussian release of C G.
denisov | Prop. 4.1 | Regret of convex SGD by the variance of the released sums.
denisov | Prop. 4.2 | Momentum and learning rates are a lower-triangular matrix of the gradients.
denisov | Prop. C.1 | Honaker's full estimator is the best decoder of the tree.
denisov | Prop. D.1 | A mechanism that is private for fixed inputs ...
denisov | Prop. D.2 | ... and not for adaptive ones.
denisov | Claim D.1 | Gaussian noise on a stream is as private for adaptive inputs as for fixed.
denisov | Prop. E.1 | Bounds of the fixed point by those of Q.
denisov | Prop. E.2 | A square to first order (proof of Theorem E.1).
denisov | Prop. E.3 | The matrix square root as an integral (the same proof).
denisov | Prop. E.4 | An inverse to first order (the same proof).
denisov | Prop. E.5 | The least eigenvalue of an elementwise product (the same proof).
denisov | Lemma E.1 | The derivative of phi as an integral (the same proof).
denisov | Lemma E.2 | Its entries (the same proof).
denisov | Lemma E.3 | It is selfadjoint in a weighted norm, in which it is below 1 (the same proof).
denisov | Thm. E.1 | The derivative of phi is a contraction (proof of Theorem 3.3).
denisov | Alg. 3 | Noise of bands and low rank, a row at a time.
denisov | Def. J.1 | Replace-with-zero differential privacy.
denisov | Def. J.2 | Zero-concentrated differential privacy.
multi-epoch | Def. 1 | Sensitivity over a participation schema.
multi-epoch | Thm. 2.1 | Sensitivity by spectral norms; exact for one dimension by enumeration.
multi-epoch | Cor. 2.1 | Where C^T C >= 0 one-dimensional inputs decide it.
multi-epoch | Thm. 2.2 | Adaptive inputs cost nothing, whatever the schema.
multi-epoch | Thm. 3.1 | The dual of the optimum, and the optimum from the dual variables.
multi-epoch | Cor. 3.1 | The gradient of the dual.
multi-epoch | Thm. 4.1 | The FFT mechanism is k^2 rho-zCDP under k participations.
multi-epoch | Alg. 1 | Prefix sums by the discrete Fourier transform.
multi-epoch | Thm. H.1 | Matrices for which one-dimensional inputs decide the sensitivity.
multi-epoch | Claim H.1 | Extreme points of row-stochastic matrices (proof of Theorem H.1).
multi-epoch | Lemma I.1 | The feasible set is bounded where the contributions span everything.
multi-epoch | Lemma I.2 | Roots that solve U = X V X.
multi-epoch | Cor. I.1 | Two of them: the geometric mean, and one by symmetric roots.
multi-epoch | Thm. J.1 | The Fourier transform diagonalises circulant matrices.
multi-epoch | Thm. J.2 | Algorithm 1 is rho-zCDP.
multi-epoch | Thm. J.3 | Its mean squared error.
multi-epoch | Cor. J.1 | The same in closed form.
multi-epoch | Prop. K.1 | The mechanism as a real factorisation B_F C_F.
multi-epoch | Prop. K.2 | Its optimal decoder in O(n log^2 n).
multi-epoch | Lemma K.1 | Square roots of circulant matrices that stay real.
banded | Thm. 1 | Amplification by sampling from parts, informally.
banded | Def. 1 | b-min-sep participation.
banded | Thm. 2 | Sensitivity of b bands under b-min-sep: exact, from the column norms.
banded | Thm. 3 | A bound for any matrix under b-min-sep.
banded | Prop. 4.1 | A banded X has a banded lower-triangular C.
banded | Problem 1 | The best encoder whose sensitivity is at most one.
banded | Problem 2 | The best banded encoder with columns of norm one.
banded | Alg. 1 | DP-SGD and MF-DP-FTRL.
banded | Alg. 2 | Sampling of fixed size from parts.
banded | Thm. 4 | b bands: guarantees of ceil(n / b) queries on one part.
banded | Alg. 3 | VecSens: the largest sum of rounds b apart.
banded | Alg. 4 | The bound of Theorem 3 in O(n^2).
banded | Alg. 5 | The sensitivity of Theorem 2 in O(n b).
banded | Prop. B.1 | Banded optima without equal norms, under (k, b)-participation.
banded | Prop. E.1 | Sensitivity as a sum of |X| over a client's rounds: exact where X >= 0.
banded | Alg. 6 | Sampling from parts.
banded | Alg. 7 | The queries that bound its privacy.
banded | Cor. F.1 | Poisson sampling from parts, by an accountant.
banded | Cor. F.2 | Shuffled batches.
banded | Example F.1 | Poisson sampling of a batch from parts, as an event of dp_accounting.
banded | Example F.2 | What sampling gains in Renyi privacy.
banded | Example F.3 | What shuffling gains.
banded | Alg. 8 | Multiplication by a banded matrix, a row at a time.
banded | Alg. 9 | Multiplication by its inverse, a row at a time.
slides | Thm. max error | The best max error is log(n) / pi and a constant; sqrt(n) if independent.
slides | Thm. mean estimation | Stationary errors of independent noise and of the best noise.
slides | Prop. mean estimation | nu = eta attains the best stationary error.
slides | Thm. linear regression | The same with the dimension, or with the effective dimension.
slides | Thm. learning rate | The same by learning rate, with damped anti-PGD between them.
slides | Thm. finite time | Privacy errors after T steps at the best learning rate.
slides | Thm. BLT | Sums of exponentials, rational functions and linear recurrences are the same.
slides | Thm. approximation | Max error by the distance of a generating function to the square root.
slides | Thm. Newman | Rational functions of degree d come within 3 exp(-sqrt d) of the root.
"""
# The slides number no statement. A statement is cited by the name of an item of the catalogue that
# shows it, or by "slides, Thm. BLT".
_SLIDES_ITEMS = {
    "Thm. max error": "slides-max-error",
    "Thm. mean estimation": "slides-mean-estimation",
    "Prop. mean estimation": "slides-mean-estimation",
    "Thm. linear regression": "slides-linear-regression",
    "Thm. learning rate": "slides-learning-rate",
    "Thm. finite time": "slides-finite-time",
    "Thm. approximation": "slides-approximation",
    "Thm. Newman": "slides-approximation",
}
# Each line has the source, the numbers of statements that nothing cites, and the reason.
_UNCITED = """
denisov | Prop. 2.1 | fedmf has a delta in every guarantee of Gaussian noise.
denisov | Def. 3.1 | A definition for one epoch; a plan has a participation schema of its own.
denisov | Prop. 4.1 | A bound for convex losses, in which the mechanism enters by its rmse alone.
denisov | Claim D.1 | It is Thm. 2.1 for a stream, and that has a test.
denisov | Prop. E.1, Prop. E.2, Prop. E.3, Prop. E.4, Prop. E.5, Lemma E.1, Lemma E.2, Lemma E.3 \
  | A step of the proof of Thm. E.1, whose conclusion has a test.
multi-epoch | Cor. 3.1 | fedmf has a solver of its own, whose certificates have tests.
multi-epoch | Claim H.1 | A step of the proof of Thm. H.1, whose conclusion has a test.
multi-epoch | Lemma I.1 | It shows that an optimum exists; a fit has a certificate instead.
multi-epoch | Lemma I.2, Cor. I.1 | Algebra of the optimum from dual variables (Thm. 3.1).
banded | Thm. 1 | The informal version of Thm. 4.
banded | Problem 1 | Problem 2, which is solved, restricts it to bands of equal norm.
"""
# Each entry is a pair: a pattern that matches the name of a paper in a text, and the paper's short
# name. Other literature has the short name "".
_PAPERS = (
    (r"[Mm]ulti-epoch", "multi-epoch"),
    (r"[Bb]anded(?: paper|,| Alg| Table)|Choquette-Choo et al\. 2023|BandMF", "banded"),
    (r"Denisov", "denisov"),
    (r"(?<![\w-])[A-Z]\w+ (?:et al\.|and [A-Z]\w+),? \(?\d{4}|arXiv", ""),
)
_KINDS = {
    "Theorem": "Thm.",
    "Corollary": "Cor.",
    "Proposition": "Prop.",
    "Algorithm": "Alg.",
    "Definition": "Def.",
    "Prob.": "Problem",
    "Lem.": "Lemma",
}
_KIND = "|".join(map(re.escape, [*_KINDS, *_KINDS.values(), "Lemma", "Claim", "Example"]))
_NUMBER = re.compile(
    rf"(?P<kind>{_KIND}) (?P<number>[A-Z]?\.?\d+(?:\.\d+)?)"
    r"(?P<paper>[^.;(]{0,12}? of (?:the )?\w[\w-]+)?"
)
# A cited number, such as "Thm. 2", belongs to a paper if the paper's name is at most this many
# characters away in the text.
_REACH = 110
# These files contain texts that describe citations, and are no citations themselves.
_OF_CITATIONS = ("theorems.py", "test_theorems.py")


class Statement(NamedTuple):
    """Numbered statement of a paper, with its source (such as banded), its number, what it says,
    and why nothing cites it; "" if something does.
    """

    source: str
    number: str
    claim: str
    why_uncited: str = ""

    @property
    def name(self) -> str:
        """Name of the statement in `fedmf paper list`, such as banded-thm-2."""
        return f"{self.source}-{re.sub(r'[. ]+', '-', self.number.lower())}"


def _reasons() -> dict[tuple[str, str], str]:
    """Returns a mapping from (source, number) to the reason why nothing cites the statement."""
    reasons: dict[tuple[str, str], str] = {}
    for line in _UNCITED.replace("\\\n", "").strip().splitlines():
        source, numbers, reason = (field.strip() for field in line.split("|"))
        reasons |= {(source, number.strip()): reason for number in numbers.split(",")}
    return reasons


def _parse_statements() -> Iterator[Statement]:
    """Yields the statements, with the reasons of those that nothing cites."""
    reason_by_statement = _reasons()
    for line in _STATEMENTS.strip().splitlines():
        source, number, claim = (field.strip() for field in line.split("|", 2))
        yield Statement(source, number, claim, reason_by_statement.get((source, number), ""))


STATEMENTS = tuple(_parse_statements())


def cited_in(text: str) -> Iterator[tuple[str, str, int]]:
    """Yields the source, number and line of each citation in a file's text.

    >>> list(cited_in("# banded paper, Prop. E.1, and Thm. 2; Alg. 1 of Denisov et al."))
    [('banded', 'Prop. E.1', 1), ('banded', 'Thm. 2', 1), ('denisov', 'Alg. 1', 1)]
    >>> list(cited_in("# banded paper; Wang and Balle 2019, Theorem 27"))
    []
    """
    # A citation may continue in the next line, so line breaks become blanks. The text keeps its
    # length, so that positions still give line numbers.
    flat_text = re.sub(r"\n *#? *", lambda gap: "".ljust(len(gap[0])), text)
    papers: list[tuple[int, str]] = []
    for pattern, cited_source in _PAPERS:
        papers += [(match.start(), cited_source) for match in re.finditer(pattern, flat_text)]
    papers.sort()
    for match in _NUMBER.finditer(flat_text):
        cited_source = _source_of(match, papers)
        if cited_source:
            statement_kind = _KINDS.get(match["kind"], match["kind"])
            line_number = text.count("\n", 0, match.start()) + 1
            yield cited_source, f"{statement_kind} {match['number']}", line_number


def _slides_cited_in(text: str) -> Iterator[tuple[str, str, int]]:
    """Yields the source, number and line of each citation of a statement of the slides."""
    for statement in STATEMENTS:
        if statement.source == "slides":
            citing_names = [f"slides, {statement.number}"]
            if statement.number in _SLIDES_ITEMS:
                citing_names.append(f'"{_SLIDES_ITEMS[statement.number]}"')
            for match in re.finditer("|".join(map(re.escape, citing_names)), text):
                yield statement.source, statement.number, text.count("\n", 0, match.start()) + 1


def _source_of(match: re.Match[str], papers: Sequence[tuple[int, str]]) -> str:
    """Returns the source of a cited number, which is the paper named right after it, or else close
    before it.

    Args:
      match: match of the number.
      papers: position and source of each paper that is named, in order.
    """
    if match["paper"]:
        for position, source in papers:
            if match.end("number") <= position < match.end():
                return source
    for position, source in reversed(papers):
        if 0 <= match.start() - position <= _REACH:
            return source
    return ""


def citations(folder: pathlib.Path) -> dict[tuple[str, str], list[str]]:
    """Returns a mapping from (source, number) to the "file:line" of each citation in a folder's
    Python files.
    """
    positions: dict[tuple[str, str], list[str]] = {}
    # Links are followed, because tasks/ is a link in a checkout.
    for parent, _, names in os.walk(folder, followlinks=True):
        for name in names:
            if not name.endswith(".py") or name in _OF_CITATIONS:
                continue
            file_path = pathlib.Path(parent, name)
            file_text = file_path.read_text(encoding="utf-8")
            for source, number, line in (*cited_in(file_text), *_slides_cited_in(file_text)):
                file_and_line = f"{file_path.relative_to(folder.parent)}:{line}"
                positions.setdefault((source, number), []).append(file_and_line)
    return {key: sorted(cited_at) for key, cited_at in positions.items()}


def cited_statements() -> Iterator[tuple[Statement, list[str], list[str]]]:
    """Yields each statement with the places in the code and the places in the tests that cite it.

    Only a checkout has tests.
    """
    package_folder = pathlib.Path(fedmf.__file__).parent
    citations_in_code = citations(package_folder)
    citations_in_tests = citations(package_folder.parent / "tests")
    for statement in STATEMENTS:
        statement_key = (statement.source, statement.number)
        yield (
            statement,
            citations_in_code.get(statement_key, []),
            citations_in_tests.get(statement_key, []),
        )


def table() -> str:
    """Returns a Markdown table of the statements and the files that cite them."""

    def files(positions: list[str]) -> str:
        """Returns the names of the files in these places."""
        file_names = dict.fromkeys(position.partition(":")[0] for position in positions)
        return ", ".join(f"`{name}`" for name in file_names)

    table_lines = ["| | says | in the code | checked by |", "|---|---|---|---|"]
    for statement, code, tests in cited_statements():
        escaped_claim = statement.claim.replace("|", "\\|")
        citing_text = files(code) or statement.why_uncited or "tests alone"
        statement_title = f"{statement.source}, {statement.number}"
        table_lines.append(
            f"| {statement_title} | {escaped_claim} | {citing_text} | {files(tests)} |"
        )
    return "\n".join(table_lines)
