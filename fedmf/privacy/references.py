"""The publications that privacy statements cite, each with its arXiv number or DOI."""

import re

# Each entry has two parts: a regular expression that finds citations of a publication in a
# statement, and the reference that the statement then lists.
REFERENCES = (
    (
        r"banded paper|Choquette-Choo et al\. 2023",
        "The banded paper: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization: A "
        "unified approach to private training. arXiv:2306.08153",
    ),
    (
        r"multi-epoch paper|Choquette-Choo et al\. 2022",
        "The multi-epoch paper: Choquette-Choo et al. 2022, Multi-Epoch Matrix Factorization "
        "Mechanisms for Private Machine Learning. arXiv:2211.06530",
    ),
    (
        r"Bun and Steinke 2016",
        "Bun and Steinke 2016, Concentrated Differential Privacy: Simplifications, Extensions, and "
        "Lower Bounds. arXiv:1605.02065",
    ),
    (
        r"Choquette-Choo et al\. 2024",
        "Choquette-Choo et al. 2024, Near Exact Privacy Amplification for Matrix Mechanisms. "
        "arXiv:2410.06266",
    ),
    (
        r"Denisov et al\. 2022",
        "Denisov et al. 2022, Improved Differential Privacy for SGD via Optimal Private Linear "
        "Operators on Adaptive Streams. arXiv:2202.08312",
    ),
    (
        r"Dwork and Roth 2014",
        "Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy. "
        "doi:10.1561/0400000042",
    ),
    (r"Dong et al\. 2022", "Dong et al. 2022, Gaussian Differential Privacy. arXiv:1905.02383"),
    (r"Dong et al\. 2026", "Dong et al. 2026, on b-min-sep sampling. arXiv:2602.09338"),
    (
        r"Feldman and Shenfeld 2026",
        "Feldman and Shenfeld 2026, on random allocation. arXiv:2602.17284",
    ),
    (
        r"McMahan et al\. 2024",
        "McMahan et al. 2024, A Hassle-free Algorithm for Private Learning in Practice: Don't Use "
        "Tree Aggregation, Use BLTs. arXiv:2408.08868",
    ),
    (
        r"Koskela, Redberg and Wang 2024",
        "Koskela, Redberg and Wang 2024, Privacy Profiles for Private Selection. arXiv:2402.06701",
    ),
    (
        r"Papernot and Steinke 2022",
        "Papernot and Steinke 2022, Hyperparameter Tuning with Renyi Differential Privacy. "
        "arXiv:2110.03620",
    ),
    (
        r"Vadhan 2017",
        "Vadhan 2017, The Complexity of Differential Privacy. doi:10.1007/978-3-319-57048-8_7",
    ),
    (
        r"Wang, Balle and Kasiviswanathan 2019",
        "Wang, Balle and Kasiviswanathan 2019, Subsampled Renyi Differential Privacy and "
        "Analytical Moments Accountant. arXiv:1808.00087",
    ),
)


def references_of(text: str) -> list[str]:
    """Returns the references that a text cites, in the order of `REFERENCES`.

    >>> references_of("by Denisov et al. 2022, Theorem 2.1")[0][-10:]
    '2202.08312'
    """
    flat_text = " ".join(text.split())
    return [reference for cited, reference in REFERENCES if re.search(cited, flat_text)]
