"""Settings of the confirmatory runs, which are fixed in experiments/papers/confirmatory.json.

Run as a program, it writes that file. After the runs have begun, the file does not change.
"""

import collections
import functools
import json
import pathlib
import tempfile

import pytest

from fedmf.experiments.papers import ITEMS, Request, provenance, study
from fedmf.experiments.papers.study_grid import DATA_SEED, TUNING_SEED
from tests.experiments.made_up_runs import made_up_scores

FILE = pathlib.Path(__file__).parents[2] / "experiments" / "papers" / "confirmatory.json"
TRAINED = [name for name, item in ITEMS.items() if item.study is not None]
HOW = (
    "Every item runs once at scale small. The setting of a line at one privacy target is the one "
    "with the best validation accuracy of the run with the tuning seed; runs of the reported seeds "
    "give the test accuracy. Each clause says that a quantity is positive. It is reproduced if the "
    "95% interval (Student's) of the mean over the reported seeds lies above 0, contradicted if it "
    "lies below 0, and inconclusive otherwise. Counts of diverged runs have the interval of a "
    "share (Clopper and Pearson). The verdict on an item is the worst one of its judged clauses. "
    "Whatever comes out is published."
)
# Processor seconds of one run, from the former runs of the same study at scale small: the recorded
# processor time over the number of runs, or their training time where no whole run was recorded.
# Where rounds, clients a round or epsilons have changed since, the cost of the next larger study is
# taken.
SECONDS_PER_RUN = {
    "stackoverflow-denisov": 25.0,
    "stackoverflow-schedules": 25.0,
    "stackoverflow-decays": 31.0,
    "stackoverflow-epochs": 9.5,
    "stackoverflow-unnoised": 14.0,
    "stackoverflow-divergence": 25.0,
    "stackoverflow-phones": 12.0,
    "stackoverflow-blt": 12.0,
    "stackoverflow-centre": 12.0,
    "stackoverflow-nu": 12.0,
    "cifar-multi-epoch": 17.0,
    "cifar-stamps": 9.0,
    "cifar-optima": 18.0,
    "cifar-banded": 7.5,
    "cifar-nu": 11.0,
}
MAX_HOURS = 14.0


def clause_texts(name, folder):
    """Returns the clauses of an item, which do not depend on the numbers."""
    with pytest.MonkeyPatch.context() as patch:
        scores, judge = made_up_scores(patch, name, folder, repeats=2)
        return [part.text for part in judge(scores)]


def of_item(name, folder):
    """Returns what is fixed for an item."""
    item = ITEMS[name]
    request = Request(folder=folder, scale="small")
    return {
        "study": small_study(item.study).name,
        "settings": provenance.settings_digest(item, request),
        "clauses": clause_texts(name, folder),
    }


@functools.cache
def small_study(grid):
    """Returns a study at scale small, which takes seconds if it searches for numbers of bands."""
    return grid("small")


def of_study(name, items, folder):
    """Returns what is fixed for the runs of a study, which these items share."""
    grids = [small_study(ITEMS[item].study) for item in items]
    assert {made.name for made in grids} == {name}
    tuning_runs, reported_runs = set(), set()
    for made in grids:
        request = Request(folder=folder / name, scale="small")
        targets = study._targets(made, request, pathlib.Path("data"))
        tuning_runs |= set(study._tuned(targets))
        settings = study._all_configs(targets) if made.repeats_every_setting else targets
        reported_runs |= {(key, seed) for key in settings for seed in made.reported_seeds}
    (seeds,) = {made.reported_seeds for made in grids}
    num_runs = len(tuning_runs) + len(reported_runs)
    return {
        "setting": max((made.reduced for made in grids), key=len),
        "seeds": list(seeds),
        "repeats every setting": grids[0].repeats_every_setting,
        "tuning runs": len(tuning_runs),
        "reported runs": len(reported_runs),
        "processor seconds": round(num_runs * SECONDS_PER_RUN[name]),
    }


def of_all(folder):
    """Returns the content of the file."""
    items_by_study = collections.defaultdict(list)
    for name in TRAINED:
        items_by_study[small_study(ITEMS[name].study).name].append(name)
    return {
        "how": HOW,
        "tuning seed": TUNING_SEED,
        "data seed": DATA_SEED,
        "studies": {name: of_study(name, items, folder) for name, items in items_by_study.items()},
        "items": {name: of_item(name, folder) for name in TRAINED},
    }


def hours(content):
    """Returns the estimated processor time of all studies in hours."""
    return sum(of["processor seconds"] for of in content["studies"].values()) / 3600


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        content = of_all(pathlib.Path(temporary) / "item")
    FILE.write_text(json.dumps(content, indent=1) + "\n")
    counts = collections.Counter(len(of["clauses"]) for of in content["items"].values())
    print(f"{hours(content):.1f} h", sum(k * n for k, n in counts.items()), "clauses")
