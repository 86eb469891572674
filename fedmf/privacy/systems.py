"""Kinds of system that a privacy statement can be about, such as a training run or the log of
another system, with the sentences that the statement has for each kind.

Each sentence is true for every system of its kind. For a plan alone, or for the log of another
system, fedmf does not know how updates are clipped, how noise is drawn or how clients are selected,
so the statement does not mention it. A new kind is one entry of `SYSTEMS`.
"""

import dataclasses

from fedmf import checks


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    """A kind of system, with the sentences that privacy statements have for it.

    Attributes:
      title: sentence about the system.
      client: sentence that defines one client.
      enforced: how the assumptions of the guarantee are enforced.
      noise_enforced: how the assumptions on the noise are enforced, if noise is added.
      generator: the noise generator; None if fedmf does not know it.
      verification: tests of the statement, if noise is added.
      record: where the record of participation is, if no printed command reads it.
      draws_in_graph: whether the noise may be drawn inside a TensorFlow graph.
      names_data: whether the statement names the task, its data and the model; for other systems
        its publisher has to.
    """

    title: str
    client: str
    enforced: str
    noise_enforced: str = ""
    generator: str | None = None
    verification: str = ""
    record: str = ""
    draws_in_graph: bool = False
    names_data: bool = False

    @property
    def secret_noise(self) -> str:
        """A phrase for what must be secret of the noise. It names a seed only if fedmf draws the
        noise, since another generator may have none.
        """
        if self.generator is None:
            return "the noise (with its seed, if it has one)"
        return "the seed of the noise"


# Sentence about the noise generator `HostNoise`, which docs/randomness.md describes.
_HOST = "Gaussians are drawn in float32 by AES-256 in counter mode."
_TESTED = (
    "`fedmf audit mechanism` tests whether the noise that this code makes for the plan is the "
    "noise that is accounted here"
)
_SEED = (
    "fedmf cannot see whether the seed of the noise stays secret and is used for no other run, and "
    "with sampling whether the sampled clients stay secret."
)
_SERVER = (
    "enforces this: in each round it refuses the clients that the plan does not allow, clips every "
    "update that is passed to `add`, and divides by a fixed number. The updates of a sum that is "
    "passed to `add_sum` have to be clipped before: only the norm of the sum is checked."
)
_TFF_GENERATOR = (
    "Gaussians are drawn in float32, by Philox4x32-10 in TensorFlow's graph or by AES-256 in "
    "counter mode in a `HostNoise`."
)
_TFF_TESTED = (
    "`fedmf audit mechanism --query` tests whether the noise that `dp_aggregator` adds is the "
    "noise that is accounted here, and `federated.check_process` lists what else a process "
    "aggregates."
)
_IN_MEMORY = "Without a folder the server keeps its record of participation in memory alone."
_LEDGER = "`fedmf audit log` can read it once `to_csv` of the ledger has written it to a file."
_NOT_SEEN = (
    "fedmf has not seen how that system clips, sums and draws noise; `fedmf audit aggregator` can "
    "test a Python function of it."
)

SYSTEMS = {
    "plan": System(
        title="A plan. fedmf has seen no system that runs it.",
        client="The system that runs the plan defines a client.",
        enforced="The plan enforces nothing of this: the system that runs it has to.",
        verification="`fedmf audit mechanism` tests whether the noise that fedmf itself makes for "
        "the plan is the noise that is accounted here. It cannot test the noise of other systems.",
    ),
    "run": System(
        title="A training run of fedmf.",
        client="A client is one of the task's client ids.",
        enforced="fedmf's training loop enforces this: its participation controller draws the "
        "cohorts, every update is clipped before it is summed, and each sum is divided by the "
        "fixed cohort size.",
        noise_enforced=_SEED,
        generator=_HOST,
        verification=f"{_TESTED}.",
        names_data=True,
    ),
    "run_tff": System(
        title="A training run of fedmf in TensorFlow Federated (execution=tff).",
        client="A client is one of the task's client ids.",
        enforced="fedmf's training in TensorFlow Federated enforces this: its participation "
        "controller draws the cohorts, and `dp_aggregator` clips every update before it is "
        "summed and divides each sum by the fixed cohort size.",
        noise_enforced=_SEED,
        generator=_HOST,
        verification=f"{_TESTED}, with `--query` of what TensorFlow Federated runs.",
        names_data=True,
    ),
    "server": System(
        title="A system with a `fedmf.Server`.",
        client="A client is one id in the calls of the server.",
        enforced=f"`fedmf.Server` {_SERVER}",
        noise_enforced=_SEED,
        generator=_HOST,
        verification=f"{_TESTED}.",
        record=_IN_MEMORY,
    ),
    "flower": System(
        title="A Flower app with `fedmf.flower.MatrixFactorizationDP`.",
        client="A client is one id: with a population a partition id, which a node reports "
        "itself, and else a node id, which Flower assigns to a registration. Neither identifies "
        "a person or a device.",
        enforced=f"The strategy draws the nodes of a round, and its `fedmf.Server` {_SERVER}",
        noise_enforced=_SEED,
        generator=_HOST,
        verification=f"{_TESTED}.",
        record=_IN_MEMORY,
    ),
    "planned_process": System(
        title="A process of TensorFlow Federated in a `federated.PlannedProcess`.",
        client="A client is one of the numbers with which the process is called.",
        enforced="`federated.PlannedProcess` enforces this: in each round it refuses the clients "
        "that the plan does not allow, and commits the round before it returns it. "
        "`dp_aggregator` clips every update before it is summed, and divides by a fixed number.",
        noise_enforced=_SEED,
        generator=_TFF_GENERATOR,
        draws_in_graph=True,
        verification=_TFF_TESTED,
        record="The record of participation is participation.jsonl in the process's folder, which "
        "`fedmf audit log` reads.",
    ),
    "pipeline": System(
        title="A pipeline of TensorFlow Federated with `dp_aggregator`.",
        client="The pipeline defines a client.",
        enforced="`dp_aggregator` enforces a part of this: it clips every update before it is "
        "summed, and divides by a fixed number. The pipeline has to enforce the participation, and "
        "that only one run begins from an initial state.",
        noise_enforced="`dp_aggregator` adds the noise. The pipeline has to keep the state secret, "
        "and to enforce the bounds and the noise of private metrics, if the plan has some.",
        generator=_TFF_GENERATOR,
        draws_in_graph=True,
        verification=_TFF_TESTED,
        record=f"The record of participation is the ledger, in memory. {_LEDGER}",
    ),
    "controller": System(
        title="The cohorts of a `fedmf.ParticipationController`.",
        client="A client is one of the numbers that the controller samples.",
        enforced="The controller samples the cohorts, and breaks the plan only for devices that it "
        "simulates as non-compliant. The system that trains has to train no other clients, and "
        "to enforce all other assumptions.",
        verification=_NOT_SEEN,
        record=f"The record of participation is the controller's ledger, in memory. {_LEDGER}",
    ),
    "ledger": System(
        title="A participation ledger. fedmf has not seen the system that wrote it.",
        client="A client is one of the ledger's numbers.",
        enforced="fedmf has read the ledger alone: the system that wrote it had to enforce all "
        "of this.",
        verification=_NOT_SEEN,
        record=f"The record of participation is the ledger, in memory. {_LEDGER}",
    ),
    "log": System(
        title="The log of another system. fedmf has read the log and nothing else of that system.",
        client="A client is one of the log's client ids.",
        enforced="fedmf has read the log alone: the system that wrote it had to enforce all of "
        "this.",
        verification=_NOT_SEEN,
    ),
}

# Kinds of audited systems. Their participation may also have been recorded in a pipeline of
# TensorFlow Federated.
_IN_PIPELINES = ("controller", "ledger", "log")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """The system that one statement is about. Fields are None if fedmf does not know them.

    Attributes:
      system: the kind of system, a key of `SYSTEMS`.
      task: name of the task.
      data: description of the task's data.
      begun, finished: dates of the run.
      folder: name of the folder that the commands of the statement check.
      model_sha256: digest of the released model's file.
    """

    system: str = "plan"
    task: str | None = None
    data: str | None = None
    begun: str | None = None
    finished: str | None = None
    folder: str | None = None
    model_sha256: str | None = None

    def __post_init__(self) -> None:
        if system_of(self.system).names_data and self.task is None:
            raise ValueError(
                f"system={self.system!r} is a training run of fedmf, and its statement names the "
                "task: state the audit of the run's folder, fedmf.audit_run(folder).statement()"
            )

    def values(self) -> dict[str, str | None]:
        """Returns all fields except `system`, in plain JSON types."""
        value_by_field = dataclasses.asdict(self)
        del value_by_field["system"]
        return value_by_field


def system_of(name: str) -> System:
    """Returns the kind of system with a given name, such as "plan".

    Raises:
      ValueError: no kind has this name.

    >>> system_of("plan").names_data
    False
    """
    return SYSTEMS[checks.one_of("system", name, tuple(SYSTEMS))]


def check_audited_system(name: str, audited: str) -> None:
    """Raises ValueError if a statement names a kind of system that its audit cannot have read.

    The audit of a controller, a ledger or a log can also be stated as that of a pipeline of
    TensorFlow Federated, because only the caller knows whether it is one. A kind that names its
    task passes here: `Subject` requires the task, which an audit of the run's folder knows.

    Args:
      name: kind of system of the statement.
      audited: kind of system of the audit.

    >>> check_audited_system("pipeline", "controller")
    """
    system_kinds = [audited, "pipeline"] if audited in _IN_PIPELINES else [audited]
    if name not in system_kinds and not system_of(name).names_data:
        hint = " or ".join(f"system={kind!r}" for kind in system_kinds)
        raise ValueError(f"system={name!r} is not what was audited: pass {hint}, or leave it out")
