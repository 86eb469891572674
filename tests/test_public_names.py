"""Docstrings of public names have sections for arguments, results and errors."""

import inspect
import re

import pytest

import fedmf
from fedmf.mechanisms import IdentityMechanism

# Names of the public API that must not change: those of `import fedmf`, and those of its results.
FIXED = {
    "fedmf": (
        "prefix_sum momentum_sgd Workload Participation fit stamp load_mechanism sensitivity loss "
        "rmse per_round_error calibrate CyclicPoisson CyclicRandomAllocation choose_bands dp_event "
        "statement Plan TrainConfig BallsInBins MinSepPoisson Server attack_risk partition "
        "PlanConfig ParticipationController"
    ),
    "Mechanism": "encoder noising rounds bands certificate save",
    "Sensitivity": "value exact method",
    "Plan": "noise_multiplier stddev epsilon delta rho sensitivity",
    "Server": "cohort add release round ledger audit statement open",
    "AttackRisk": "mu advantage true_positive_rate",
    "partition": "dirichlet shards quantity_skew",
    "PlanConfig": "plan to_json",
    "ParticipationController": "cohort audit",
    "ParticipationLedger": "save load to_csv from_csv",
}
# The fields of a mechanism differ from family to family.
HOLDERS = {"fedmf": fedmf, "Mechanism": IdentityMechanism}
# Names of `from fedmf import federated`, which needs TensorFlow.
FIXED_FEDERATED = "MatrixFactorizationQuery dp_aggregator Task train"
NAMES = {name: getattr(fedmf, name) for name in fedmf.__all__}


def missing_sections(thing):
    """Returns the sections that a docstring should have and lacks."""
    text = inspect.getdoc(thing) or ""
    if inspect.isclass(thing):
        sections = [] if issubclass(thing, Warning) else ["Attributes:", "Args:"]
        return [] if not sections or any(section in text for section in sections) else sections
    signature = inspect.signature(thing)
    sections = ["Raises:"]
    if signature.parameters:
        sections.append("Args:")
    if signature.return_annotation not in (None, "None"):
        sections.append("Returns:")
    return [section for section in sections if section not in text]


def test_docstrings_have_sections_for_arguments_results_and_errors():
    assert [name for name, thing in NAMES.items() if missing_sections(thing)] == []


# Words of a Raises section that name no condition.
VAGUE = re.compile(
    r"Error: naming the \w+|(?:argument|attribute|field) is (?:wrong|invalid)|message names"
)


def vague_names(owner, things):
    """Returns the names of things and of their methods whose Raises section is vague."""
    names = []
    for name, thing in things.items():
        methods = {}
        if inspect.isclass(thing):
            members = inspect.getmembers(thing)
            methods = {key: value for key, value in members if not key.startswith("_")}
        for key, value in {"": thing, **methods}.items():
            _, _, raises = (inspect.getdoc(value) or "").partition("Raises:")
            if VAGUE.search(" ".join(raises.split())):
                names.append(f"{owner}.{name}.{key}")
    return names


def test_every_raises_section_names_its_condition():
    assert vague_names("fedmf", NAMES) == []
    from fedmf import partition

    partitions = {name: getattr(partition, name) for name in partition.__all__}
    assert vague_names("partition", partitions) == []


@pytest.mark.tensorflow
def test_every_raises_section_of_training_names_its_condition():
    from fedmf import federated

    names = {name: getattr(federated, name) for name in federated.__all__}
    assert vague_names("federated", names) == []


def test_a_vague_raises_section_is_detected():
    def vague(x: int) -> int:
        """Gives x.

        Raises:
          TypeError, ValueError: naming the argument and its value.
        """
        return x

    assert vague_names("here", {"vague": vague})


def test_a_docstring_without_sections_is_detected():
    def silent(x: int) -> int:
        """Gives x."""
        return x

    class Silent:
        """Has x."""

    assert missing_sections(silent) == ["Raises:", "Args:", "Returns:"]
    assert missing_sections(Silent)


def test_the_fixed_names_exist():
    for owner, names in FIXED.items():
        holder = HOLDERS.get(owner) or getattr(fedmf, owner)
        fields = set(getattr(holder, "__dataclass_fields__", ()))
        annotated = set(getattr(holder, "__annotations__", ()))
        member_names = {*dir(holder), *fields, *annotated}
        assert set(names.split()) - member_names == set(), owner
    assert set(FIXED["fedmf"].split()) <= {*fedmf.__all__, "partition"}


def test_the_fixed_names_that_need_tensorflow_exist():
    from fedmf import federated

    assert set(FIXED_FEDERATED.split()) <= set(federated.__all__)
