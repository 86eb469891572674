"""`CohortDataSource`: the cohorts of a participation controller as the data source
of a TFF program.
"""

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
    """The data of the controller's cohorts, round by round, for `tff.learning.programs.train_model`
    and kin.

    All passes go over the same rounds: a cohort is a pure function of the controller's seed, the
    round and the ledger so far. A round that is discarded or done again has the same clients, and
    is one round of the ledger. An iterator that is saved in a program state holds the ledger of the
    rounds before, which a new controller like the first then goes on from. With sampling that is
    secret, as is the noise in it.

    Args:
      controller: draws the cohorts; its ledger is the record of the run.
      client_data: index of a client -> its tf.data.Dataset, of the same element_spec for all. Pure:
        a round that is done again has the same noise, and must have the same examples
        in the same order.

    Raises:
      TypeError: client_data gives anything else for client 0.

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
        example = client_data(0)
        if not isinstance(example, tf.data.Dataset):
            raise TypeError(
                f"client_data gave {example!r} for client 0: it must give a "
                "tf.data.Dataset for each client"
            )
        elements = tff.types.tensorflow_to_type(example.element_spec)
        self._federated_type = tff.FederatedType(tff.SequenceType(elements), tff.CLIENTS)
        # TFF restores an iterator by a method of its class, and says nothing else
        # of where its data are.
        self._iterator_class = type("CohortIterator", (CohortIterator,), {"source": self})

    @property
    def federated_type(self) -> tff.FederatedType:
        """That of a list of datasets at clients."""
        return self._federated_type

    def iterator(self) -> "CohortIterator":
        """A pass from round 0 on."""
        return self._iterator_class()

    def training_selection_fn(self, round_num: int) -> list[tf.data.Dataset]:
        """Returns the datasets of a round's cohort, for `tff.simulation.run_training_process`.

        Args:
          round_num: TFF's number of the round, from 1 on.

        Raises:
          TypeError: round_num is not an int.
          ValueError: a round before 1 or beyond the plan's last; rounds out of order; in a new
            process, before the controller has taken over the ledger of the rounds before.
        """
        hint = "TFF's first round is 1"
        round_num = checks.integer("round_num", round_num, low=1, hint=hint)
        rounds = self.controller.participation.rounds
        num_drawn = len(self.controller.ledger)
        if round_num > rounds:
            raise ValueError(
                f"round_num={round_num} is beyond the last, {rounds}: the plan of rounds={rounds} "
                "is over and has no more rounds; make a plan for more, with a guarantee of its own"
            )
        if round_num > num_drawn + 1:
            raise ValueError(
                f"round_num={round_num} cannot be drawn (t={round_num - 1} of the controller, "
                f"which counts from 0): the next is round_num={num_drawn + 1} of {rounds}; ask for "
                "rounds in order, or call controller.resume_from(ledger=...) first, with the "
                "ledger of the rounds before (ParticipationLedger.load reads one)"
            )
        return [self._client_data(int(client)) for client in self.controller.cohort(round_num - 1)]


class CohortIterator(tff.program.FederatedDataSourceIterator):
    """A pass over the rounds of one `CohortDataSource`, which makes it."""

    source: ClassVar[CohortDataSource]

    def __init__(self, num_selected: int = 0) -> None:
        self._num_selected = num_selected

    @property
    def federated_type(self) -> tff.FederatedType:
        """That of the source."""
        return self.source.federated_type

    def select(self, k: int | None = None) -> list[tf.data.Dataset]:
        """The datasets of the next round's cohort.

        Args:
          k: the controller's cohort_size, or None.

        Raises:
          ValueError: another k, or no round is left.
        """
        size = self.source.controller.cohort_size
        if k is not None:
            k = checks.integer(
                "k", k, low=1, hint=f"ask for {size}, the controller's `cohort_size`"
            )
        if k not in (None, size):
            raise ValueError(
                f"k={k} clients a round, but the controller draws "
                f"cohort_size={size}: ask for {size}"
            )
        data = self.source.training_selection_fn(self._num_selected + 1)
        self._num_selected += 1
        return data

    def to_bytes(self) -> bytes:
        """JSON: what the controller is, and the ledger of the rounds done, a list [took part,
        selected] of client indices for each.
        """
        ledger = self.source.controller.ledger
        rounds = [
            [ledger.cohort(t).tolist(), ledger.selected(t).tolist()]
            for t in range(self._num_selected)
        ]
        return json.dumps(
            {"controller": _described(self.source.controller), "rounds": rounds}
        ).encode()

    @classmethod
    def from_bytes(cls, buffer: bytes) -> "CohortIterator":
        """The inverse of `to_bytes`. A controller that has drawn nothing goes on from the ledger.

        Raises:
          ValueError: the controller is made with other arguments, the ledger is not its own, or one
            that it cannot have drawn.
        """
        controller, state = cls.source.controller, json.loads(buffer)
        there = _described(controller)
        if changed := sorted(
            name for name in there if state["controller"].get(name) != there[name]
        ):
            raise ValueError(
                "the program state was saved with a controller of another "
                f"{' and '.join(changed)}, which draws other cohorts under the same noise: make "
                "the controller with the arguments that it had, or use a state folder of its own"
            )
        saved = ParticipationLedger(cohort_size=controller.ledger.cohort_size)
        for cohort, selected in state["rounds"]:
            saved.append(np.array(cohort, np.int64), selected=np.array(selected, np.int64))
        if len(controller.ledger) < len(saved):
            controller.resume_from(saved)
        elif controller.ledger.first(len(saved)).to_csv() != saved.to_csv():
            raise ValueError(
                f"the program state's first {len(saved)} rounds had other cohorts than the "
                "controller's: it belongs to another run; use a "
                "state folder of its own, or a new controller to go on with that one"
            )
        return cls(len(saved))


def _described(controller: ParticipationController) -> dict[str, str]:
    """What its draws follow from, by argument; of the seed, which is secret
    with sampling, a digest.
    """
    names = ("participation", "population", "cohort_size", "sampling", "behavior")
    # Of a model that is no dataclass nothing but its class is known
    available = controller.availability
    return {name: repr(getattr(controller, name)) for name in names} | {
        "availability": repr(available)
        if dataclasses.is_dataclass(available)
        else type(available).__name__,
        "seed": hashlib.sha256(f"fedmf controller {controller.seed}".encode()).hexdigest(),
    }
