"""Names of clients, tasks, folders and files stay text in the Markdown of a statement."""

import html
import re

import pytest

import fedmf
from fedmf.privacy.describe import statement_values
from fedmf.privacy.markdown_text import code_span, plain_markdown
from fedmf.privacy.statement import markdown
from fedmf.privacy.systems import Subject
from tests.privacy.plans import plan

markdown_package = pytest.importorskip("markdown")

APART = fedmf.Participation(rounds=8, schema="min_sep", min_sep=4)
LINE_ENDS = "\n \r \v \f \x1c \x85 \u2028 \u2029".split(" ")
ODD_NAMES = [
    "<script>alert(1)</script>",
    "`x` ``y`",
    "a | b | c",
    "**No privacy.** _x_ __y__",
    "[a](http://a) ![b](http://b)",
    "&lt;b&gt; \\<b> \\` \\",
    "<!-- ",
    "~~~ --- === # x",
    *[f"a{end}# A heading{end}- **Model.** x{end}> y{end}```{end}</div>" for end in LINE_ENDS],
]


def rendered(text):
    """Renders Markdown as HTML."""
    return markdown_package.markdown(text, extensions=["tables", "fenced_code"])


def shape_of(page):
    """Returns the tags of a page, except those of code, which a name may be."""
    return re.findall(r"</?(?!code\b)\w+", page)


def text_of(page):
    """Returns the visible text of a page, with one blank between words."""
    return " ".join(html.unescape(re.sub("<[^>]*>", "", page)).split())


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("write", [plain_markdown, code_span])
def test_a_name_is_shown_and_nothing_of_it_is_read(name, write):
    page = rendered(f"Before {write(name)} after.".replace("\0", " "))
    assert shape_of(page) == ["<p", "</p"]
    assert text_of(page) == " ".join(f"Before {name} after.".split())


@pytest.mark.parametrize("name", ["my_task", "next-word", "C4 (en), 3.1 + 2", "it's #3 a_b"])
def test_a_plain_name_is_left_as_it_is(name):
    assert plain_markdown(name) == name


def statement_of(name, folder):
    """Returns a statement with the name in every place of a name."""
    log_path = folder / "log.csv"
    quoted = name.replace('"', '""')
    # The id of a client has no line end at its ends.
    log_path.write_text(f'client,round\n"{quoted}x",0\n"{quoted}x",1\n')
    values = fedmf.audit_log(log_path, plan(APART)).statement_values(
        subject=Subject(system="run", task=name, data=name, folder=name),
        pretraining=name,
        commands=["fedmf audit run x"],
    )
    values["observed"]["log"]["name"] = name
    return markdown(values | {"synthetic_clients": name})


@pytest.mark.parametrize("name", ODD_NAMES)
def test_no_name_breaks_out_of_a_statement(name, tmp_path):
    expected_shape = shape_of(rendered(statement_of("name", tmp_path)))
    assert shape_of(rendered(statement_of(name, tmp_path))) == expected_shape


def test_a_wrapped_line_does_not_begin_a_block():
    starts = "- x 1. x === x > x # x"
    expected_shape = None
    for length in range(75, 105):  # so that each of the starts once stands where a line ends
        values = statement_values(plan(APART), pretraining=f"{'a' * length} {starts}")
        shape = shape_of(rendered(markdown(values)))
        expected_shape = expected_shape or shape
        assert shape == expected_shape, length
