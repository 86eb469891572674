"""Tables and figures of the five sources by name: `fedmf paper list`, `fedmf paper run NAME`."""

from fedmf.experiments.papers import (
    banded,
    cifar,
    denisov,
    elsewhere,
    multi_epoch,
    slides,
    slides_theory,
    stackoverflow_figures,
    tables,
)
from fedmf.experiments.papers.item import SOURCES, Item, Outcome, Request

# A module whose items are made takes the place of the line in `elsewhere` that says they are not.
ITEMS: dict[str, Item] = {
    item.name: item
    for item in sorted(
        {
            item.name: item
            for module in (
                elsewhere,
                denisov,
                multi_epoch,
                banded,
                slides,
                slides_theory,
                tables,
                cifar,
                stackoverflow_figures,
            )
            for item in module.ITEMS
        }.values(),
        key=lambda item: item.order,
    )
}

__all__ = ["ITEMS", "SOURCES", "Item", "Outcome", "Request"]
