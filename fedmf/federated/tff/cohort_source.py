"""A data source for TFF programs, whose cohorts a controller samples."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import tensorflow as tf

from fedmf import checks, fields
from fedmf.cohorts.controller import ParticipationController
from fedmf.federated.tff import tff
from fedmf.participation.ledger import ParticipationLedger


class CohortDataSource(tff.program.FederatedDataSource):
    """A data source that gives a TFF program the datasets of each round's cohort.

    A `ParticipationController` samples the cohorts. The source is for
    `tff.learning.programs.train_model` and similar programs.

    All iterators yield the same rounds: a cohort is a pure function of the controller's seed, the
    round and the ledger so far. A round that is discarded or repeated has the same clients, and is
    one round of the ledger. An iterator that is saved in a program state holds the ledger of the
    rounds before, from which a new controller with the same arguments resumes. With sampling the
    ledger is secret, as is the noise in the program state.

    Args:
      controller: samples the cohorts; its ledger is the record of the run.
      client_data: index of a client -> its tf.data.Dataset, with one element_spec for all clients.
        Pure: a repeated round has the same noise, and must have the same examples in the same
        order.

    Raises:
      TypeError: client_data returns no tf.data.Dataset for client 0.

    Example:
      >>> import fedmf, numpy as np, tensorflow as tf
      >>> from fedmf import federated
      >>> twice = fedmf.Participation(rounds=4, schema="min_sep", min_sep=2)
      >>> controller = fedmf.ParticipationController(twice, population=6, cohort_size=3, seed=1)
      >>> source = federated.CohortDataSource(
      ...     controller, lambda i: tf.data.Dataset.from_tensors(np.float32(i))
      ... )
      >>> str(source.federated_type), len(source.iterator().select()), len(controller.ledger)
      ('{float32*}@CLIENTS', 3, 1)
    """

    def __init__(
        self, controller: ParticipationController, client_data: Callable[[int], tf.data.Dataset]
    ) -> None:
        fields.instance(ParticipationController)("controller", controller)
        hint = "pass a function: index of a client -> its tf.data.Dataset"
        checks.function("client_data", client_data, num_arguments=1, hint=hint)
        self.controller = controller
        self._client_data = client_data
        first_dataset = client_data(0)
        if not isinstance(first_dataset, tf.data.Dataset):
            raise TypeError(
                f"client_data gave {first_dataset!r} for client 0: return a tf.data.Dataset for "
                "each client"
            )
        element_type = tff.types.tensorflow_to_type(first_dataset.element_spec)
        self._federated_type = tff.FederatedType(tff.SequenceType(element_type), tff.CLIENTS)
        # TFF restores an iterator by a class method, to which no source is passed. So each source
        # gets an iterator class of its own, with the source as an attribute.
        self._iterator_class = type("CohortIterator", (CohortIterator,), {"source": self})

    @property
    def federated_type(self) -> tff.FederatedType:
        """TFF's type of the selected data, that is a dataset at each client."""
        return self._federated_type

    def iterator(self) -> "CohortIterator":
        """Returns an iterator over the rounds, which begins with round 0."""
        return self._iterator_class()

    def training_selection_fn(self, round_num: int) -> list[tf.data.Dataset]:
        """Returns the datasets of a round's clients, for `tff.simulation.run_training_process`.

        Args:
          round_num: TFF's number of the round, from 1 on.

        Raises:
          TypeError: round_num is not an int.
          ValueError: the round is before 1 or beyond the plan's last; rounds are out of order; or,
            in a new process, the controller has not resumed from the ledger of the rounds before.
        """
        hint = "TFF's first round is 1"
        round_num = checks.integer("round_num", round_num, low=1, hint=hint)
        num_rounds = self.controller.participation.rounds
        num_drawn = len(self.controller.ledger)
        if round_num > num_rounds:
            raise ValueError(
                f"round_num={round_num} is beyond the last round of a plan of rounds={num_rounds}: "
                "make a plan for more rounds, with a guarantee of its own"
            )
        if round_num > num_drawn + 1:
            raise ValueError(
                f"round_num={round_num} cannot be drawn (t={round_num - 1} of the controller, "
                f"which counts from 0): the next is round_num={num_drawn + 1} of {num_rounds}; ask "
                "for rounds in order, or call controller.resume_from(ledger=...) first, with the "
                "ledger of the rounds before (ParticipationLedger.load reads one)"
            )
        return [self._client_data(int(client)) for client in self.controller.cohort(round_num - 1)]


class CohortIterator(tff.program.FederatedDataSourceIterator):
    """An iterator over the rounds of a `CohortDataSource`, which creates it."""

    source: ClassVar[CohortDataSource]

    def __init__(self, num_selected: int = 0) -> None:
        self._num_selected = num_selected

    @property
    def federated_type(self) -> tff.FederatedType:
        """TFF's type of the selected data, which is the type of the source."""
        return self.source.federated_type

    def select(self, k: int | None = None) -> list[tf.data.Dataset]:
        """Returns the datasets of the clients in the next round.

        Args:
          k: the controller's cohort_size, or None.

        Raises:
          ValueError: k is another number, or all rounds are over.
        """
        cohort_size = self.source.controller.cohort_size
        if k is not None:
            hint = f"ask for {cohort_size}, the controller's `cohort_size`"
            k = checks.integer("k", k, low=1, hint=hint)
        if k not in (None, cohort_size):
            raise ValueError(
                f"k={k} clients a round, but the controller samples cohort_size={cohort_size}: ask "
                f"for {cohort_size}"
            )
        datasets_of_cohort = self.source.training_selection_fn(self._num_selected + 1)
        self._num_selected += 1
        return datasets_of_cohort

    def to_bytes(self) -> bytes:
        """Saves the iterator as JSON, with the controller's arguments and the ledger so far.

        The ledger has a list [participants, selected] of client indices for each round.
        """
        ledger = self.source.controller.ledger
        recorded_rounds = [
            [ledger.cohort(t).tolist(), ledger.selected(t).tolist()]
            for t in range(self._num_selected)
        ]
        iterator_state = {
            "controller": controller_arguments(self.source.controller),
            "rounds": recorded_rounds,
        }
        return json.dumps(iterator_state).encode()

    @classmethod
    def from_bytes(cls, buffer: bytes) -> "CohortIterator":
        """Restores an iterator that `to_bytes` has saved.

        If the controller has sampled fewer rounds, it resumes from the saved ledger.

        Raises:
          ValueError: the controller has other arguments, the ledger is another one, or the
            controller cannot have sampled it.
        """
        controller = cls.source.controller
        iterator_state = json.loads(buffer)
        current_arguments = controller_arguments(controller)
        changed_names = sorted(
            name
            for name in current_arguments
            if iterator_state["controller"].get(name) != current_arguments[name]
        )
        if changed_names:
            raise ValueError(
                "the program state was saved with a controller of another "
                f"{' and '.join(changed_names)}, which samples other cohorts under the same noise: "
                "make the controller with the arguments that it had, or use another state folder"
            )
        saved_ledger = ParticipationLedger(cohort_size=controller.ledger.cohort_size)
        for cohort, selected in iterator_state["rounds"]:
            saved_ledger.append(np.array(cohort, np.int64), selected=np.array(selected, np.int64))
        if len(controller.ledger) < len(saved_ledger):
            controller.resume_from(saved_ledger)
        elif controller.ledger.first(len(saved_ledger)).to_csv() != saved_ledger.to_csv():
            raise ValueError(
                f"the program state's first {len(saved_ledger)} rounds had other cohorts than the "
                "controller's: it belongs to another run; use another state folder, or a new "
                "controller to resume that run"
            )
        return cls(len(saved_ledger))


def controller_arguments(controller: ParticipationController) -> dict[str, str]:
    """Returns a text for each argument of a controller that determines its cohorts.

    The text of the seed is a digest, because the seed is secret if clients are sampled.
    """
    argument_names = ("participation", "population", "cohort_size", "sampling", "behavior")
    text_by_argument = {name: repr(getattr(controller, name)) for name in argument_names}
    availability = controller.availability
    if dataclasses.is_dataclass(availability):
        text_by_argument["availability"] = repr(availability)
    else:
        # The repr of other objects may include their address in memory.
        text_by_argument["availability"] = type(availability).__name__
    seed_digest = hashlib.sha256(f"fedmf controller {controller.seed}".encode())
    text_by_argument["seed"] = seed_digest.hexdigest()
    return text_by_argument
