"""A leading "~" is the home folder wherever a path is taken: by functions, fields and commands."""

import inspect
import pathlib
import re

import click
import numpy as np
import pytest

import fedmf
import fedmf.cli
from fedmf.cli.values import EXISTING, EXISTING_FILE, PATH, FilePath, NoiseSeed, OutputFile
from fedmf.runs.export import check_export_path
from fedmf.server import host_noise
from fedmf.server.folder import ServerFolder
from fedmf.server.host_noise import HostNoise
from fedmf.tasks.describe import describe_file
from fedmf.tasks.stackoverflow.text_import import import_text
from tests.cli.test_errors import commands
from tests.mechanisms.registry import MECHANISMS
from tests.runs.test_folder import CONFIG, new_run
from tests.server.plans import make_server, plan_of
from tests.test_architecture import SOURCES
from tests.training import numpy_task

PARTICIPATION = fedmf.Participation(rounds=12, schema="min_sep", min_sep=3)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Makes a home folder with a file of each kind that is read, and changes to another folder."""
    home = tmp_path / "home"
    elsewhere = tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(elsewhere)
    MECHANISMS["banded"](12).save(home / "m.npz")
    np.save(home / "matrix.npy", np.eye(12))
    make_server(home / "server", noise_seed="os").close()
    new_run(home / "run")
    fedmf.ParticipationLedger(cohort_size=1).save(home / "ledger.npz")
    (home / "log.csv").write_text("round,client\n0,1\n")
    (home / "texts.csv").write_text("user,text\n" + "".join(f"{i},words\n" for i in range(40)))
    (home / "schedule").write_text("1 " * 12)
    (home / "config.json").write_text(CONFIG.to_json())
    yield home
    assert list(elsewhere.iterdir()) == []


def noise_in_a_map():
    """Allocates rows that exceed the memory: the strategy looks at the folder's disk first."""
    plan = plan_of(MECHANISMS["banded"](12))
    HostNoise(plan, 100, noise_seed=1, folder="~/map")
    host_noise._zeros((2, 100), is_mapped=True, folder="~/map")


# Function and argument -> a call with a path in the home folder, and the path that it writes there.
CALLS = {
    "Server.__init__ folder": (lambda: make_server("~/new", noise_seed="os").close(), "new"),
    "Server.open folder": (lambda: fedmf.Server.open("~/server").close(), ""),
    "load_mechanism path": (lambda: fedmf.load_mechanism("~/m.npz"), ""),
    "load_factorization path": (lambda: fedmf.load_factorization("~/matrix.npy"), ""),
    "Mechanism.save path": (lambda: fedmf.load_mechanism("~/m.npz").save("~/n.npz"), "n.npz"),
    "fit cache": (
        lambda: fedmf.fit(
            fedmf.prefix_sum(12), PARTICIPATION, family="dense", cache="~/cache", max_iterations=1
        ),
        "",
    ),
    "audit_log path": (
        lambda: fedmf.audit_log("~/log.csv", plan_of(MECHANISMS["banded"](12)), folder="~/"), ""
    ),
    "audit_log folder": (
        lambda: fedmf.audit_log("~/log.csv", plan_of(MECHANISMS["banded"](12)), folder="~/"), ""
    ),
    "Run.load path": (lambda: fedmf.Run.load("~/run"), ""),
    "audit_run folder": (lambda: fedmf.audit_run("~/run"), ""),
    "ParticipationLedger.from_csv text": (
        lambda: fedmf.ParticipationLedger.from_csv("~/log.csv", rounds=1, cohort_size=1), ""
    ),
    "ParticipationLedger.to_csv path": (
        lambda: fedmf.ParticipationLedger(cohort_size=1).to_csv("~/written.csv"), "written.csv"
    ),
    "ParticipationLedger.save path": (
        lambda: fedmf.ParticipationLedger(cohort_size=1).save("~/saved.npz"), "saved.npz"
    ),
    "ParticipationLedger.load path": (lambda: fedmf.ParticipationLedger.load("~/ledger.npz"), ""),
    "partition.picture path": (
        lambda: fedmf.partition.picture(np.arange(4) % 2, np.arange(4) % 2, "~/who.png"),
        "who.png"
    ),
    "HostNoise.__init__ folder": (noise_in_a_map, "map"),
    "ServerFolder.__init__ path": (lambda: ServerFolder("~/folder").close(), "folder"),
    "WarmupCooldown file": (lambda: fedmf.schedule.schedule_text("schedule", "~/schedule"), ""),
    "read_config_file path": (lambda: fedmf.runs.config.read_config_file("~/config.json"), ""),
    "import_text path, out": (lambda: import_text("~/texts.csv", "~/texts.sqlite"), "texts.sqlite"),
    "train folder": (lambda: numpy_task.train("~/trained"), "trained/result.json"),
    "check_export_path path": (
        lambda: check_export_path("~/new").relative_to(pathlib.Path.home()), ""
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_functions_take_a_tilde(home, name):
    call, written_path = CALLS[name]
    call()
    assert (home / written_path).exists()


def test_data_files_take_a_tilde(home):
    import_text("~/texts.csv", "~/texts.sqlite")
    assert describe_file("~/texts.sqlite")["path"] == str(home / "texts.sqlite")


def test_every_public_function_with_a_path_is_called():
    """A new argument that is a path has to be added to CALLS."""
    public = [getattr(fedmf, name) for name in fedmf.__all__] + [fedmf.partition.picture]
    functions = {function for function in public if inspect.isfunction(function)}
    for kind in filter(inspect.isclass, public):
        functions |= {f for _, f in inspect.getmembers(kind) if inspect.isroutine(f)}
    path_arguments = {
        f"{function.__qualname__} {name}"
        for function in functions
        if (getattr(function, "__module__", None) or "").startswith("fedmf")
        for name, hint in getattr(function, "__annotations__", {}).items()
        if re.search("PathLike|Path", str(hint)) and name != "return"
    }
    assert len(path_arguments) > 8
    path_arguments -= {"Run.__init__ path"}  # of a dataclass that `Run.load` fills
    named_arguments = {name.replace("picture", "partition.picture") for name in path_arguments}
    assert named_arguments <= CALLS.keys()


def test_fields_that_are_paths_take_a_tilde(home):
    config = fedmf.TrainConfig(family="file", mechanism="~/m.npz", data="~/data.sqlite",
                               initial_model="~/m.keras", rounds=12, min_sep=3,
                               noise_multiplier=1.0)  # fmt: skip
    assert config.mechanism == str(home / "m.npz")
    assert config.data == str(home / "data.sqlite")
    assert config.initial_model == str(home / "m.keras")
    assert config.plan().mechanism.rounds == 12
    assert fedmf.PlanConfig.from_mapping({"mechanism": "./m.npz"} | {
        "family": "file", "rounds": 12, "min_sep": 3, "noise_multiplier": 1.0
    }, "plan").mechanism == "./m.npz"  # fmt: skip


def test_commands_take_a_tilde_in_every_path(home):
    """The tilde is expanded by the type of an option, or by the checks of a field."""
    types = [parameter.type for command in commands() for parameter in command.params]
    paths = {type(kind) for kind in types if isinstance(kind, click.Path | OutputFile | click.File)}
    assert all(issubclass(kind, FilePath | OutputFile) for kind in paths)
    assert len(paths) == 3
    for kind, name in ((PATH, "new"), (EXISTING, "run"), (EXISTING_FILE, "m.npz")):
        assert kind.convert(f"~/{name}", None, None) == home / name
    assert OutputFile(".png").convert("~/a.png", None, None) == home / "a.png"
    (home / "seed").write_text("17\n")
    assert NoiseSeed().convert("@~/seed", None, None) == 17
    path_words = re.compile(r"\b(file|folder|FILE)\b")
    for command in commands():
        for parameter in command.params:
            if isinstance(getattr(parameter, "help", None), str) and path_words.search(
                parameter.help
            ):
                kind = parameter.type
                assert not isinstance(kind, click.types.StringParamType), (command, parameter)


# Modules that make a Path from an internal text, or from an expanded one.
INSIDE = {
    "fedmf.files": 3,
    "fedmf.memory": 3,
    "fedmf.tables": 1,
    "fedmf.audits.guarantee": 1,
    "fedmf.noise.storage": 1,
    "fedmf.cli.paper": 2,
    "fedmf.federated.tff.noise_source": 1,
    "fedmf.federated.keras_file": 1,  # in a temporary folder of its own
    "fedmf.trackers.base": 1,  # in a temporary folder of its own
    "fedmf.trackers.wandb": 1,  # the folder of the tracked run
    "fedmf.federated.tff.worker": 1,
    "fedmf.sweeps.runs": 1,
    "fedmf.tasks.emnist.synthetic": 1,
    "fedmf.tasks.stackoverflow.compiled.c_library": 3,
    "fedmf.tasks.stackoverflow.vocabulary": 1,
}


def test_no_module_makes_a_path_of_an_unexpanded_argument():
    path_calls = {
        name: len(re.findall(r"(?<!click\.)\bpathlib\.Path\((?!__file__)", text))
        for name, text in SOURCES.items()
        if not name.startswith("fedmf.experiments")
    }
    assert {
        n: num_calls for n, num_calls in path_calls.items() if num_calls > INSIDE.get(n, 0)
    } == {}
