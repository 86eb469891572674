"""The whole report: its contents, its captions for simulations, and no resource of other
machines.
"""

import base64
import dataclasses
import html
import html.parser
import pathlib
import re
import shlex
import subprocess

import matplotlib
import pytest

from fedmf import reports
from fedmf.privacy.rounding import down, up
from fedmf.reports import canvas, groups, tables, write_report
from fedmf.reports.text import significant

_VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(html.parser.HTMLParser):
    """Page of a report, whose tags must nest."""

    def __init__(self, page_source):
        super().__init__()
        self.source = page_source
        self.open = []
        self.attributes = []
        self.feed(page_source)
        assert self.open == []
        self.ids = [value for _, name, value in self.attributes if name == "id"]
        without_code = re.sub(r"<(style|script)>.*?</\1>", "", page_source, flags=re.S)
        self.text = visible_text(without_code)

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def inside(self, tag):
        """Returns the text of each element of this kind."""
        return [
            visible_text(element)
            for element in re.findall(rf"<{tag}\b.*?</{tag}>", self.source, re.S)
        ]


def visible_text(source):
    """Returns the text of HTML without tags."""
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", source)).split())


def report(runs, folder, title="A report"):
    """Writes a report and returns its page."""
    path = write_report(runs, folder, title=title)
    assert path == folder / "report.html"
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture
def undrawn_plots(monkeypatch):
    """Replaces the rendering of plots, which takes most of the time, for tests of the text."""
    monkeypatch.setattr(canvas, "as_png", lambda figure: b"\x89PNG")


@pytest.fixture(scope="module")
def demo_report(demo_runs, tmp_path_factory):
    """Returns the page and the folder of the demo's report."""
    folder = tmp_path_factory.mktemp("demo")
    return report(demo_runs, folder), folder


def test_page_is_well_formed_and_loads_nothing(demo_report):
    page, _ = demo_report
    assert "http://" not in page.source
    assert "https://" not in page.source
    assert "url(" not in page.source
    # The script sorts tables, and does not use the network.
    (sort_script,) = re.findall(r"<script>(.*?)</script>", page.source, re.S)
    assert not re.search(
        r"fetch|XMLHttp|import|src|href|WebSocket|Beacon|eval|innerHTML", sort_script
    )
    for tag, name, value in page.attributes:
        assert name not in ("href", "srcset", "onclick"), (tag, name, value)
        assert name != "src" or value.startswith("data:image/png;base64,")
    assert len(page.ids) == len(set(page.ids))


def test_plots_are_inside_and_beside_the_page(demo_report):
    page, folder = demo_report
    inside_images = [value.split(",")[1] for _, name, value in page.attributes if name == "src"]
    image_by_name = {path.stem: path.read_bytes() for path in (folder / "plots").iterdir()}
    assert sorted(image_by_name) == [
        "noise_levels", "noise_matrices", "participation", "training", "validation"
    ]  # fmt: skip
    assert sorted(map(base64.b64decode, inside_images)) == sorted(image_by_name.values())
    assert all(image.startswith(b"\x89PNG") for image in image_by_name.values())


def test_every_mechanism_and_number_is_there(demo_report, demo_runs):
    page, _ = demo_report
    for label in ("No noise (not private)", "DP-FedAvg", "Tree (full Honaker)", "Banded (8 bands)"):
        assert label in page.text
    for run in demo_runs:
        accuracy = f"{100 * run.result['test']['accuracy']:.2f}%"
        assert f"seed {run.config.seed}: {accuracy}" in page.text
        assert run.path.name in page.text
        if run.config.family != "none":
            # Numbers of the guarantee are rounded as in the statement.
            for text in (
                *(up(run.plan[name]) for name in ("epsilon", "rho")),
                down(run.plan["noise_multiplier"]),
                up(run.plan["sensitivity"]["value"], 6),
                significant(run.plan["rmse"], 4),
            ):
                assert text in page.text
    for pair in zip(demo_runs[::2], demo_runs[1::2], strict=True):
        mean = sum(run.result["validation"]["accuracy"] for run in pair) / 2
        assert f"{100 * mean:.2f}%" in page.text
    for words in ("δ = 1e-6", "2.14.1", "exact"):
        assert words in page.text


def test_a_sensitivity_that_is_no_exact_value_is_marked(make_run):
    run = make_run("banded")
    run.plan["sensitivity"]["exact"] = False
    (row,) = tables.accuracy_table(groups.group_runs([run])).rows
    assert row[4].details == ["upper bound"]


@pytest.mark.parametrize(("fraction", "is_noted"), [(1.0, True), (0.98, False)])
def test_a_run_whose_updates_were_all_clipped_says_what_to_do(
    make_run, tmp_path, undrawn_plots, fraction, is_noted
):
    run = make_run("banded")
    for row in run.metrics:
        row["clip_fraction"] = fraction
    page = report([run, make_run("none")], tmp_path)
    assert ("All updates were clipped" in page.text) == is_noted
    assert ("Banded (8 bands). The clip norm then scales" in page.text) == is_noted


def test_only_runs_without_noise_have_no_privacy(make_run, tmp_path, undrawn_plots):
    old_plot = tmp_path / "plots" / "noise_matrices.png"
    for run in (make_run("none"), make_run("tree", noise_multiplier=0.0)):
        old_plot.parent.mkdir(exist_ok=True)
        old_plot.write_text("of an earlier report")
        noiseless_page = report([run], tmp_path)
        assert noiseless_page.inside("td").count("no privacy") == 2
        assert not any("noise" in name for name in noiseless_page.ids)
        assert not old_plot.exists()
    assert "no privacy" not in report([make_run("banded")], tmp_path).text


def test_every_caption_states_the_simulation(make_run, tmp_path, figures, undrawn_plots):
    runs = [make_run(family, claimed_cohort=1000) for family in ("none", "identity", "banded")]
    page = report(runs, tmp_path)
    assert all(
        figure.texts[-1].get_text().startswith("Simulation: 5 clients") for figure in figures
    )
    assert len(figures) == 5
    simulation_text = (
        "Simulation: 5 clients a round were simulated to estimate a cohort of 1,000 "
        "(noise scaled by 5/1,000)."
    )
    assert "simulation" in page.ids
    assert "The models trained here do not have the epsilon shown." in page.text
    captions = page.inside("caption") + page.inside("figcaption")
    assert len(captions) == 3 + 5
    for caption in captions:
        assert simulation_text in caption
        assert "the models trained here do not have it" in caption


def test_report_of_honest_runs_mentions_no_simulation_and_no_violation(demo_report):
    page, _ = demo_report
    assert "simulation" not in page.text.lower()
    assert "than planned" not in page.text
    assert "claimed" not in page.text.replace(
        "no amplification by sampling or shuffling is claimed", ""
    ).replace("claimed_cohort", "")
    assert "simulation" not in page.ids


def test_captions_state_a_simulation_of_some_runs(make_run, tmp_path, undrawn_plots):
    # The simulated run is the one without noise, so that the plots of the noise show
    # no simulated run.
    page = report([make_run("none", claimed_cohort=1000), make_run("banded")], tmp_path)
    assert "Some of the models trained here" in page.text
    simulation_text = "Simulation in 1 of 2 runs, marked “simulates” in the tables"
    assert all(simulation_text in caption for caption in page.inside("caption"))
    captions = page.inside("figcaption")
    noise_captions = [
        caption for caption in captions if "deviation" in caption or "matrix" in caption
    ]
    assert len(noise_captions) == 2
    assert not any("Simulation" in caption for caption in noise_captions)


def test_texts_of_runs_are_escaped(make_run, tmp_path, undrawn_plots):
    evil_text = "<script>alert('x')</script>&<b>\"'"
    run = make_run("banded", task=evil_text, description=evil_text, data=evil_text)
    evil_links = "[a](http://example.com) ![b](http://example.com) <http://example.com>"
    run_changes = {
        "path": run.path / evil_text,
        "plan": run.plan | {"versions": {evil_text: evil_text}},
    }
    statement = f"# Title\n\n1. {evil_text} {evil_links}\n"
    page = report(
        [dataclasses.replace(run, statement=statement, **run_changes)], tmp_path, title=evil_text
    )
    assert page.source.count("<script>") == 1
    assert not any(name == "href" or value.startswith("http") for _, name, value in page.attributes)
    assert page.text.count("alert('x')") >= 5


def test_the_statement_becomes_html_lists(demo_report):
    source = demo_report[0].source
    statement = source[source.index("<h2>Privacy statement") : source.index("<h2>Reproduction")]
    assert statement.count("<details") == 4  # one for each mechanism, not for each seed
    assert statement.count("<details open>") == 1
    assert "<strong>DP setting.</strong>" in statement
    # Three items, two of which hold a nested list.
    assert statement[: statement.index("</details>")].count("<ol>") == 3
    for mark in ("**", "<h1"):
        assert mark not in statement


def test_an_unfinished_run_is_reported_as_such(make_run, tmp_path, undrawn_plots):
    page = report([make_run("banded", stop=10), make_run("identity")], tmp_path)
    assert "1 of 2 runs is unfinished" in page.text
    assert page.text.count("unfinished after round 10 of 24") >= 3
    assert "A cross ends the curve" in page.text
    page = report([make_run("banded", stop=0), make_run("tree", stop=2)], tmp_path)
    assert "unfinished: no round is complete yet" in page.text
    assert "unfinished after round 2 of 24" in page.text
    assert "plot-participation" not in page.ids


def test_participation_beyond_the_plan_is_an_alarm(make_run, tmp_path, undrawn_plots):
    run = make_run("banded")
    often_counts = {"min_separation": 3, "max_participations": 4, "histogram": {"1": 10, "4": 5}}
    once_counts = {"min_separation": None, "max_participations": 1, "histogram": {"1": 40}}
    for observed_counts, epsilon, expected_words in (
        (
            often_counts,
            11.0,
            ("less than planned", "more than planned", "weaker than planned", "11"),
        ),
        (once_counts, None, ("no client twice", "weaker than planned", "no privacy")),
    ):
        weaker_result = run.result | {
            "participation": run.result["participation"] | observed_counts,
            "achieved": {"epsilon": epsilon, "rho": None, "sensitivity": 3.0},
        }
        page = report([dataclasses.replace(run, result=weaker_result)], tmp_path)
        assert all(words in page.text for words in expected_words)


@pytest.mark.slow
def test_a_report_has_the_same_bytes_under_any_matplotlib_settings(make_run, tmp_path):
    run = make_run("banded")
    file_contents = []
    (tmp_path / "report.html").write_text("old")
    for font_size in (10, 30):
        with matplotlib.rc_context({"font.size": font_size, "axes.grid": False}):
            report([run], tmp_path)
            # The reader's settings are not changed.
            assert matplotlib.rcParams["font.size"] == font_size
        paths = [tmp_path / "report.html", *sorted((tmp_path / "plots").iterdir())]
        file_contents.append({path: path.read_bytes() for path in paths})
    assert file_contents[0] == file_contents[1]


def test_runs_that_cannot_be_reported_are_refused(make_run, tmp_path):
    noiseless_run = make_run("none")
    for runs, error_type, words in (
        ([], ValueError, r"runs=\[\]"),
        (["folder"], TypeError, r"fedmf\.Run\.load"),
        ([noiseless_run, make_run("none", task="cifar10")], ValueError, "different tasks"),
    ):
        with pytest.raises(error_type, match=words):
            write_report(runs, tmp_path, title="")
    path = tmp_path / "file"
    path.write_text("in the way")
    with pytest.raises(ValueError, match="cannot write the report to folder .*file"):
        write_report([noiseless_run], path, title="")
    assert path.read_text() == "in the way"


def test_caption_of_results_names_adaptive_servers(make_run):
    adam_run = make_run("banded", server_optimizer="adam")
    sgd_run = make_run("tree")
    noiseless_run = make_run("none", server_optimizer="yogi")

    def caption(*runs):
        return tables.accuracy_table(groups.group_runs(list(runs))).caption

    assert "The servers optimise with Adam: the privacy is the same" in caption(
        adam_run, noiseless_run
    )
    assert "Some of the servers optimise with Adam" in caption(adam_run, sgd_run)
    assert "optimise with" not in caption(sgd_run, noiseless_run)


def test_the_commands_are_those_of_the_command_line(make_run, tmp_path, undrawn_plots):
    from fedmf.cli import cli

    runs = [make_run("banded"), make_run("none")]
    config = dataclasses.replace(runs[0].config, task="regression")
    runs[0] = dataclasses.replace(runs[0], config=config)
    page = report(runs, tmp_path, title="It's a report")
    (command_lines,) = re.findall(r"<pre id=.commands.>(.*?)</pre>", page.source, re.S)
    train_words, report_words = (
        shlex.split(html.unescape(line))[1:] for line in command_lines.splitlines()
    )
    expected_words = (
        "train --config banded-0/config.json --out again/banded-0 --noise-seed os".split()
    )
    assert train_words == expected_words
    assert report_words == [*"report banded-0 none-0 --out report --title".split(), "It's a report"]
    for words in (train_words, report_words):
        cli.commands[words[0]].make_context(words[0], words[1:], resilient_parsing=True)


def words_in_a_shell(command):
    """Returns the words of a command, as bash splits them."""
    shell_script = f"printf '%s\\0' {command}"
    completed_process = subprocess.run(
        ["bash", "-c", shell_script], capture_output=True, text=True, check=True
    )
    return completed_process.stdout.split("\0")[:-1]


@pytest.mark.parametrize("name", ["-x", "--", "two words", "ü", "two\nlines"])
def test_the_command_of_a_report_names_run_folders_as_they_are_typed(
    make_run, name, tmp_path, monkeypatch
):
    from fedmf.cli import cli

    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").touch()
    monkeypatch.chdir(tmp_path)

    run = make_run("banded")
    run = dataclasses.replace(run, path=tmp_path / name)
    task_config = dataclasses.replace(run.config, task="regression")
    train_command, report_command = reports._commands(
        [dataclasses.replace(run, config=task_config)], "-t"
    )
    words = words_in_a_shell(train_command)
    context = cli.commands["train"].make_context("train", words[2:], resilient_parsing=True)
    assert context.params["config_file"] == pathlib.Path(name) / "config.json"
    assert context.params["out"] == pathlib.Path("again") / name
    words = words_in_a_shell(report_command)
    context = cli.commands["report"].make_context("report", words[2:], resilient_parsing=True)
    assert context.params["title"] == "-t"
    assert pathlib.Path(words[2]) == pathlib.Path(name)
    assert not words[2].startswith("-")


def test_training_and_clients_are_drawn_if_they_were_measured(
    make_run, tmp_path, figures, undrawn_plots
):
    deciles = [0.1 + 0.02 * i for i in range(9)]
    client_metrics = {"clients": 58, "clients_without_examples": 2, "mean": 0.2, "deciles": deciles}
    fine_tuned = {
        "epochs": 2,
        "measured_on": "validation",
        "left_out": {"too_few_examples": 3},
        "metrics": {"accuracy": {"clients": 50, "clients_undefined": 5, "clients_not_finite": 2}},
    }
    for name, mean in (("before", 0.2), ("after", 0.25), ("change", 0.05)):
        fine_tuned["metrics"]["accuracy"][name] = {"mean": mean, "deciles": deciles}
    run = dataclasses.replace(make_run("banded"), clients=client_metrics, fine_tuned=fine_tuned)
    page = report([run, make_run("tree")], tmp_path)
    titles = {ax.get_title(loc="left") for figure in figures for ax in figure.axes}
    assert {"Training loss", "Updates clipped", "Accuracy over training clients"} <= titles
    alt_texts = " ".join(
        value for tag, name, value in page.attributes if (tag, name) == ("img", "alt")
    )
    for words in (
        "seed 0: 10.00% to 26.00% over 58 clients",
        "Banded (8 bands) updates clipped 0.54",
        "--fine-tune 2, on validation: 20.00% to 25.00% over 50 clients, 10 left out, "
        "2 of these for values that are not finite",
    ):
        assert words in alt_texts
    names = ("round", "clients", "examples")
    bare_rows = [{name: row[name] for name in names} for row in run.metrics]
    fine_tuned["metrics"]["accuracy"] = {"clients": 0, "clients_undefined": 55}
    bare_run = dataclasses.replace(make_run("banded"), metrics=bare_rows, fine_tuned=fine_tuned)
    page = report([bare_run], tmp_path)
    assert not {"plot-training", "plot-clients", "plot-fine_tuned"} & set(page.ids)
