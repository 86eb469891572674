"""Grids of training runs for the papers' figures, at every scale."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedmf.experiments.papers.item import Scale
from fedmf.mechanisms import Mechanism
from fedmf.privacy.flat_config import families_taking
from fedmf.runs.config import TrainConfig
from fedmf.sweeps.grid import sweep_configs

Fields = dict[str, Any]
# Settings are chosen by runs of this seed, and the seeds after it are reported. No result that was
# kept before has a seed above 32, so no run of these seeds has influenced a setting.
TUNING_SEED = 1000
# Seed of the synthetic data on which the studies at scale small train.
DATA_SEED = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """Grid of training runs for one or more figures.

    Attributes:
      name: name of its sweep's folder, which figures of the same runs share.
      fixed: field of `TrainConfig` -> the value of every run.
      parts: (line of the figure, field -> value or values to try) for the other fields. A line may
        have several parts. The field `mechanism` has a key of `mechanisms`.
      repeats: number of seeds that are reported.
      repeats_every_setting: whether all settings of a line train with these seeds, and not only the
        best one. Claims about several settings of a line need this.
      data: suffix of a path, and function that writes a synthetic substitute there if there is no
        real file.
      reduced: sizes that are smaller than in the paper.
      smoothed_over: number of last rounds whose validations are averaged for tuning.
      mechanisms: name -> function that makes the mechanism of a file for family=file.
    """

    name: str
    fixed: Mapping[str, Any]
    parts: Sequence[tuple[str, Fields]]
    repeats: int
    data: tuple[str, Callable[[pathlib.Path], object]]
    reduced: str
    smoothed_over: int = 0
    repeats_every_setting: bool = False
    mechanisms: Mapping[str, Callable[[], Mechanism]] = dataclasses.field(default_factory=dict)

    def configs(
        self, data: pathlib.Path, folder: pathlib.Path
    ) -> Iterator[tuple[str, str, TrainConfig]]:
        """Yields the line, name and configuration of every run with TUNING_SEED. Several lines may
        share a run.
        """
        fixed_fields = {**self.fixed, "data": str(data)}
        for line, line_fields in self.parts:
            tried_values = {name: _as_list(value) for name, value in line_fields.items()}
            if "mechanism" in tried_values:
                tried_values["mechanism"] = [
                    str(folder / f"{stem}.npz") for stem in tried_values["mechanism"]
                ]
            line_families = set(tried_values.get("family", [fixed_fields.get("family")]))
            applicable_fields = {
                name: value
                for name, value in fixed_fields.items()
                if name not in tried_values and line_families & set(families_taking(name))
            }
            varied_fields = {**tried_values, "seed": [TUNING_SEED]}
            for name, config in sweep_configs(applicable_fields, varied_fields).items():
                yield line, name, config

    @property
    def reported_seeds(self) -> range:
        """Seeds of the runs that are reported."""
        return range(TUNING_SEED + 1, TUNING_SEED + 1 + self.repeats)

    def stems(self) -> list[str]:
        """Returns the names of the mechanism files that the lines use."""
        all_fields = [line_fields for _, line_fields in self.parts]
        mechanism_names = [fields["mechanism"] for fields in all_fields if "mechanism" in fields]
        return list(dict.fromkeys(mechanism_names))


def _as_list(value: Any) -> list[Any] | tuple[Any, ...]:
    """Returns the values to try of a field, for which one value or several are given."""
    return value if isinstance(value, list | tuple) else [value]


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """Study that can be made at every scale.

    Attributes:
      make: function from size to study.
      sizes: scale -> size.
    """

    make: Callable[[Any], Study]
    sizes: Mapping[Scale, Any]

    def __call__(self, scale: Scale) -> Study:
        """Returns the study at a scale."""
        return self.make(self.sizes[scale])


def sized(sizes: Mapping[Any, Any], **changes: Any) -> Callable[[Callable[[Any], Study]], Grid]:
    """Returns a decorator that turns a function from size to study into a `Grid` with these sizes.

    The fields in `changes` replace those of scale small.
    """
    small_size = dataclasses.replace(sizes["small"], **changes)
    return lambda make: Grid(make, {**sizes, "small": small_size})
