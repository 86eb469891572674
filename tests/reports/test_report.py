"""The whole report: what it says, that it says it honestly, and that it stands alone."""

import base64
import dataclasses
import html.parser
import re
import shlex

import matplotlib
import pytest

from fedmf.reports import write_report
from fedmf.reports.text import significant

_VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(html.parser.HTMLParser):
    """Checks that tags nest, and collects what the tests ask for."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.source = text
        self.open, self.attributes, self.ids, self.texts = [], [], [], []
        self.captions, self.figcaptions, self.cells = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in _VOID:
            self.open.append(tag)
        {"caption": self.captions, "figcaption": self.figcaptions, "td": self.cells}.get(
            tag, []
        ).append("")

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data):
        if "style" in self.open or "script" in self.open:
            return
        self.texts.append(data)
        for tag, texts in (
            ("caption", self.captions),
            ("figcaption", self.figcaptions),
            ("td", self.cells),
        ):
            if tag in self.open:
                texts[-1] += data

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def report(runs, folder, title="A report"):
    path = write_report(runs, folder, title=title)
    assert path == folder / "report.html"
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def demo(demo_runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return report(demo_runs, folder), folder


def test_page_is_well_formed_and_loads_nothing(demo):
    page, _ = demo
    assert "http://" not in page.source
    assert "https://" not in page.source
    assert "url(" not in page.source
    # Sorts tables, and knows no network
    (script,) = re.findall(r"<script>(.*?)</script>", page.source, re.S)
    assert not re.search(r"fetch|XMLHttp|import|src|href|WebSocket|Beacon|eval|innerHTML", script)
    for tag, name, value in page.attributes:
        assert name not in ("href", "srcset", "onclick"), (tag, name, value)
        assert name != "src" or value.startswith("data:image/png;base64,")
    assert len(page.ids) == len(set(page.ids))


def test_plots_are_inside_and_beside_the_page(demo):
    page, folder = demo
    inside = [
        base64.b64decode(value.split(",")[1]) for _, name, value in page.attributes if name == "src"
    ]
    beside = {path.stem: path.read_bytes() for path in (folder / "plots").iterdir()}
    assert set(beside) == {
        "validation",
        "training",
        "noise_levels",
        "noise_matrices",
        "participation",
    }
    assert sorted(inside) == sorted(beside.values())
    assert all(image.startswith(b"\x89PNG") for image in inside)
    alts = [value for tag, name, value in page.attributes if tag == "img" and name == "alt"]
    assert len(alts) == 5
    assert all(alts)


def test_every_mechanism_and_number_is_there(demo, demo_runs):
    page, _ = demo
    for label in ("No noise (not private)", "DP-FedAvg", "Tree (full Honaker)", "Banded (8 bands)"):
        assert label in page.text
    for run in demo_runs:
        for split in ("validation", "test"):
            assert (
                f"seed {run.config.seed}: {100 * run.result[split]['accuracy']:.2f}%" in page.text
            )
        if run.config.family == "none":
            continue
        for name in ("epsilon", "rho", "noise_multiplier", "rmse"):
            assert significant(run.plan[name], 3 if name == "epsilon" else 4) in page.text
        assert significant(run.plan["sensitivity"]["value"], 4) in page.text
        assert run.path.name in page.text
    for first, second in zip(demo_runs[::2], demo_runs[1::2], strict=True):
        mean = (
            first.result["validation"]["accuracy"] + second.result["validation"]["accuracy"]
        ) / 2
        assert f"{100 * mean:.2f}%" in page.text
    assert "δ = 1e-6" in page.text
    assert "2.14.1" in page.text
    assert "upper bound" in page.text
    assert "exact" in page.text


def test_only_runs_without_noise_have_no_privacy(make_run, tmp_path):
    for run in (make_run("none"), make_run("tree", noise_multiplier=0.0)):
        without = report([run], tmp_path / run.config.family)
        assert [cell.split() for cell in without.cells].count(["no", "privacy"]) == 2
        assert not any("noise" in name for name in without.ids)
    assert "no privacy" not in report([make_run("banded")], tmp_path / "banded").text


def test_simulation_is_said_everywhere(make_run, tmp_path, figures):
    runs = [make_run(family, claimed_cohort=1000) for family in ("none", "identity", "banded")]
    page = report(runs, tmp_path)
    assert all(
        figure.texts[-1].get_text().startswith("Simulation: 5 clients") for figure in figures
    )
    assert len(figures) == 5
    said = (
        "Simulation: 5 clients a round were simulated to estimate a cohort of 1,000 "
        "(noise scaled by 5/1,000)."
    )
    assert "simulation" in page.ids
    assert "The models trained here do not have the epsilon shown." in page.text
    assert len(page.captions) == 3
    assert len(page.figcaptions) == 5
    for caption in page.captions + page.figcaptions:
        assert said in caption
        assert "the models trained here do not have it" in caption


def test_neither_simulation_nor_a_broken_promise_is_said_elsewhere(demo):
    page, _ = demo
    assert "simulation" not in page.text.lower()
    assert "than planned" not in page.text
    assert "claimed" not in page.text.replace(
        "no amplification by sampling or shuffling is claimed", ""
    ).replace("claimed_cohort", "")
    assert "simulation" not in page.ids


def test_simulation_of_some_runs_is_said_where_they_are_shown(make_run, tmp_path):
    # The simulated run is the one without noise, so that the plots of the noise show
    # no simulated run.
    page = report([make_run("none", claimed_cohort=1000), make_run("banded")], tmp_path)
    assert "Some of the models trained here" in page.text
    assert all("Simulation in 1 of 2 runs" in caption for caption in page.captions)
    noisy = [
        caption for caption in page.figcaptions if "deviation" in caption or "matrix" in caption
    ]
    assert len(noisy) == 2
    assert not any("Simulation" in caption for caption in noisy)


def test_data_is_escaped(make_run, tmp_path):
    evil = "<script>alert('x')</script>&<b>\"'"
    run = make_run("banded", task=evil, description=evil, data=evil)
    run = dataclasses.replace(
        run,
        path=run.path / evil,
        statement=f"# Title\n\n1. {evil} [a](http://example.com) ![b](http://example.com) "
        "<http://example.com>\n",
        plan=run.plan | {"versions": {evil: evil}},
    )
    page = report([run], tmp_path, title=evil)
    # Sorts tables, and knows no network
    (script,) = re.findall(r"<script>(.*?)</script>", page.source, re.S)
    assert not re.search(r"fetch|XMLHttp|import|src|href|WebSocket|Beacon|eval|innerHTML", script)
    assert not any(value.startswith("http") for _, _, value in page.attributes)
    assert not any(name == "href" for _, name, _ in page.attributes)
    assert page.text.count("alert('x')") >= 5


def test_statement_becomes_lists(demo, demo_runs):
    page, _ = demo
    statement = page.source[
        page.source.index("<h2>Privacy statement") : page.source.index("<h2>Reproduction")
    ]
    assert statement.count("<details") == 4  # one for each mechanism, not for each seed
    assert statement.count("<details open>") == 1
    assert "<strong>DP setting.</strong>" in statement
    assert "**" not in statement
    # Three items, two of which hold a nested list.
    first = statement[: statement.index("</details>")]
    assert first.count("<ol>") == 3
    assert "<h1" not in statement


def test_an_unfinished_run_is_reported_as_such(make_run, tmp_path):
    page = report([make_run("banded", stop=10), make_run("identity")], tmp_path)
    assert "1 of 2 runs is unfinished" in page.text
    assert page.text.count("unfinished after round 10 of 24") >= 3
    assert "A cross ends the curve" in page.text


def test_runs_without_any_validation(make_run, tmp_path):
    page = report([make_run("banded", stop=0), make_run("tree", stop=2)], tmp_path)
    assert "unfinished: no round is complete yet" in page.text
    assert "unfinished after round 2 of 24" in page.text
    assert "participation" not in [
        value.removeprefix("plot-") for value in page.ids if value.startswith("plot-")
    ]


def test_a_broken_promise_stands_out(make_run, tmp_path):
    run = make_run("banded")
    seen = run.result["participation"] | {"min_separation": 3, "max_participations": 4}
    seen["histogram"] = {"1": 10, "4": 5}
    once = run.result["participation"] | {
        "min_separation": None,
        "max_participations": 1,
        "histogram": {"1": 40},
    }
    for participation, epsilon, said in (
        (seen, 11.0, ("less than planned", "more than planned", "weaker than planned", "11.0")),
        (once, None, ("no client twice", "weaker than planned", "no privacy")),
    ):
        achieved = {"epsilon": epsilon, "rho": None, "sensitivity": 3.0}
        weaker = run.result | {"participation": participation, "achieved": achieved}
        page = report([dataclasses.replace(run, result=weaker)], tmp_path)
        assert all(words in page.text for words in said)


def test_same_runs_same_bytes_whatever_the_readers_matplotlib_settings(make_run, tmp_path):
    run = make_run("banded")
    report([run, make_run("tree")], tmp_path, title="Old")
    report([run], tmp_path / "a")
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False}):
        report([run], tmp_path)
        assert matplotlib.rcParams["font.size"] == 30  # and the reader keeps them
    for path in [
        "report.html",
        *(path.relative_to(tmp_path) for path in (tmp_path / "plots").iterdir()),
    ]:
        assert (tmp_path / path).read_bytes() == (tmp_path / "a" / path).read_bytes()


def test_without_noise_an_old_plot_goes(make_run, tmp_path):
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "noise_matrices.png").write_text("old")
    report([make_run("none")], tmp_path)
    assert not (tmp_path / "plots" / "noise_matrices.png").exists()


def test_bad_arguments_are_named(make_run, tmp_path):
    with pytest.raises(ValueError, match=r"runs=\[\]"):
        write_report([], tmp_path, title="")
    with pytest.raises(TypeError, match=r"fedmf\.Run\.load"):
        write_report(["folder"], tmp_path, title="")
    with pytest.raises(ValueError, match=r"different tasks, cifar10 .* and stackoverflow_nwp"):
        write_report([make_run("none"), make_run("none", task="cifar10")], tmp_path, title="")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match=r"cannot write the report to folder .*file"):
        write_report([make_run("none")], tmp_path / "file", title="")
    assert (tmp_path / "file").read_text() == "in the way"


def test_an_adaptive_server_is_said_where_the_error_is_printed(make_run, tmp_path):
    adam, none = (
        make_run("banded", server_optimizer="adam"),
        make_run("none", server_optimizer="yogi"),
    )
    sgd = make_run("tree")

    def caption(*runs):
        return Page(write_report(list(runs), tmp_path, title="servers").read_text()).captions[0]

    assert (
        "The servers optimise with Adam: the privacy is the same, but the mechanism was "
        "optimised for prefix sums" in (caption(adam, none))
    )
    assert "Some of the servers optimise with Adam" in caption(adam, sgd)
    assert "optimise with" not in caption(sgd, none)


def test_the_commands_are_those_of_the_command_line(make_run, tmp_path):
    from fedmf.cli import cli

    runs = [make_run("banded"), make_run("none")]
    runs[0] = dataclasses.replace(
        runs[0], config=dataclasses.replace(runs[0].config, task="regression")
    )
    page = report(runs, tmp_path, title="It's a report")
    (text,) = re.findall(
        r"<pre id=.commands.>(.*?)</pre>",
        page.source.replace("&#39;", "'").replace("&#34;", '"'),
        re.S,
    )
    train, again = (shlex.split(line) for line in text.splitlines())
    assert (
        train
        == "fedmf train --config banded-0/config.json --out again/banded-0 --noise-seed os".split()
    )
    assert again == [
        "fedmf",
        "report",
        "banded-0",
        "none-0",
        "--out",
        "report",
        "--title",
        "It's a report",
    ]
    for words in (train, again):
        cli.commands[words[1]].make_context(words[1], words[2:], resilient_parsing=True)


def test_training_and_clients_are_drawn_where_they_were_measured(make_run, tmp_path, figures):
    run = make_run("banded")
    clients = {
        "clients": 58,
        "clients_without_examples": 2,
        "mean": 0.2,
        "deciles": [0.1 + 0.02 * i for i in range(9)],
    }
    page = report([dataclasses.replace(run, clients=clients), make_run("tree")], tmp_path)
    titles = [ax.get_title(loc="left") for figure in figures for ax in figure.axes]
    for title in ("Training loss", "Updates clipped", "Accuracy over training clients"):
        assert title in titles
    said = [value for tag, name, value in page.attributes if (tag, name) == ("img", "alt")]
    assert any("Banded (8 bands), seed 0: 10.00% to 26.00% over 58 clients" in alt for alt in said)
    assert any("Banded (8 bands) updates clipped 0.54" in alt for alt in said)


def test_no_plot_of_what_was_not_measured(make_run, tmp_path):
    bare = [
        {name: row[name] for name in ("round", "clients", "examples")}
        for row in make_run("banded").metrics
    ]
    page = report([dataclasses.replace(make_run("banded"), metrics=bare)], tmp_path)
    assert not {"plot-training", "plot-clients"} & set(page.ids)
