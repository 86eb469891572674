"""Reproductions of every table and figure of the papers, which `fedmf paper run NAME` makes and
`fedmf paper list` lists.
"""

from fedmf.experiments.papers import (  # noqa: F401 (each declares its items)
    band_ratios,
    banded,
    blt,
    cifar,
    denisov,
    error_tables,
    multi_epoch,
    noise_tables,
    schemes,
    slides,
    slides_learning,
    slides_training,
    stackoverflow_epochs,
    stackoverflow_figures,
)
from fedmf.experiments.papers.item import ITEMS, SOURCES, Item, Outcome, Request

__all__ = ["ITEMS", "SOURCES", "Item", "Outcome", "Request"]
