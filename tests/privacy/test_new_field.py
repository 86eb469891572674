"""A field of `PlanConfig` is declared once: one that only this file declares is in every command,
in plan.json and in the commands of a statement.
"""

import inspect
import json
import pathlib
import re
import subprocess
import sys

import fedmf

# The source of `PlanConfig` with an additional field is imported instead of its module.
PROGRAM = """
import importlib.machinery, importlib.util, json, sys

NAME = "fedmf.privacy.config"


class Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        field = '    tenants: int = fields.whole_number(1, "Tenants of the server.")\\n\\n'
        text = self.get_source(fullname)
        return compile(text.replace("    def __post_init__", field + "    def __post_init__", 1),
                       self.path, "exec")


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == NAME:
            file = f"{path[0]}/config.py"
            return importlib.util.spec_from_file_location(name, file, loader=Loader(name, file))


sys.meta_path.insert(0, Finder)
import fedmf
from click.testing import CliRunner
from fedmf.cli import cli


def run(*words):
    result = CliRunner().invoke(cli, list(map(str, words)))
    assert result.exit_code == 0, (words, result.output)
    return result.output


PLAN = "m.npz --rounds 4 --min-sep 2 --noise-multiplier 1 --tenants 3".split()
run("fit", *"--rounds 4 --min-sep 2 --family identity --out m.npz".split())
with open("log.csv", "w") as file:
    file.write("client,round\\n7,0\\n")
run("audit", "log", "log.csv", *PLAN, "--statement", "audited.json")
config = fedmf.TrainConfig(rounds=4, min_sep=2, family="identity", noise_multiplier=1.0, tenants=3)
from fedmf.runs.plan_record import plan_record

commands = ("train", "calibrate", "audit log", "audit mechanism", "plan learning-rate", "sweep")
print(json.dumps({
    "helps": {name: run(*name.split(), "--help") for name in commands},
    "sweep": run(*"sweep --task regression --out s --vary tenants=2,5 --rounds 4 "
                 "--min-sep 2 --family none --dry-run --json".split()),
    "plan.json": plan_record(config, config.plan())["config"],
    "calibrated": json.loads(run("calibrate", *PLAN, "--statement", "--json")),
}))
"""


def test_a_field_is_declared_once(tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout)
    assert [
        name for name, text in results["helps"].items() if "--tenants INTEGER" not in text
    ] == []
    assert list(json.loads(results["sweep"])) == ["tenants=2", "tenants=5"]
    assert results["plan.json"]["tenants"] == 3
    (command,) = results["calibrated"]["statement_values"]["commands"]
    assert "--tenants 3" in command
    (command,) = json.loads((tmp_path / "audited.json").read_text())["commands"]
    assert "--tenants 3" in command


def test_options_of_plans_are_declared_by_the_fields_alone():
    """The command line takes all of them from `options_of`."""
    cli = pathlib.Path(inspect.getfile(fedmf)).parent / "cli"
    text = "".join(path.read_text() for path in cli.rglob("*.py"))
    names = [field.replace("_", "-") for field in fedmf.PlanConfig.__dataclass_fields__]
    declared = [name for name in names if re.search(rf'\(\s*"--{name}"', text)]
    # `fit` takes a family that can be fitted, and `plan compare` several families, schemes and
    # targets. In the other commands these options mean something else.
    several = {"family", "sampling", "epsilon", "bands"}
    assert set(declared) <= several | {"mechanism", "min-sep"}, declared


def test_a_plan_has_at_most_17_public_names():
    plan = fedmf.PlanConfig(rounds=4, min_sep=2, family="identity", noise_multiplier=1.0).plan()
    assert len([name for name in dir(plan) if not name.startswith("_")]) <= 17
