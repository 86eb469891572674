"""The table of the papers' numbered statements: citations in the code are found, and no others."""

from fedmf.experiments.papers.theorems import STATEMENTS, cited_in, cited_statements, table


def test_citations_are_found():
    for text, found in {
        "(banded paper, Thm. 2)": ("banded", "Thm. 2"),
        "Alg. 5 of the banded paper": ("banded", "Alg. 5"),
        "# Multi-epoch paper, App. J,\n    # Corollary J.1": ("multi-epoch", "Cor. J.1"),
        "(Denisov et al. 2022, Theorem 2.1)": ("denisov", "Thm. 2.1"),
        "Choquette-Choo et al. 2023, Corollary F.2": ("banded", "Cor. F.2"),
        "# banded paper, Example F.1": ("banded", "Example F.1"),
    }.items():
        assert [citation[:2] for citation in cited_in(text)] == [found]


def test_other_literature_is_left_out():
    for text in (
        "Thm. 2",
        "banded paper, Table 2",
        "banded paper; Canonne, Kamath and Steinke 2020, Proposition 12",
        "Choquette-Choo et al. 2024, arXiv:2410.06266, Lemma 3.2",
        "banded paper." + 120 * " " + "Thm. 2",
    ):
        assert list(cited_in(text)) == []


def test_every_citation_is_of_a_statement_and_what_the_code_rests_on_has_a_test():
    assert len({(s.source, s.number) for s in STATEMENTS}) == len(STATEMENTS) > 50
    # The slides' statements are shown by items, which test_items.py makes.
    numbered = [cited for cited in cited_statements() if cited[0].source != "slides"]
    rested_on = {s.name: tests for s, code, tests in numbered if code}
    assert len(rested_on) > 30
    assert [name for name, tests in rested_on.items() if not tests] == []


def test_a_statement_that_nothing_cites_has_a_reason_and_no_other_has():
    for statement, code, tests in cited_statements():
        assert bool(code or tests) != bool(statement.why_uncited), statement


def test_the_slides_statements_are_cited_by_the_items_that_show_them():
    cited = {s.number: code for s, code, _ in cited_statements() if s.source == "slides"}
    assert len(cited) == 9
    assert any("experiments/papers/slides" in place for place in cited["Thm. max error"])


def test_what_nothing_cites_is_listed_with_its_reason():
    text = table()
    assert "test_theorems.py" not in text
    _, _, *rows = text.splitlines()
    assert len(rows) == len(STATEMENTS)
    (theorem,) = (row for row in rows if row.startswith("| banded, Thm. 2 |"))
    assert "`fedmf/participation/round_sets.py`" in theorem
    (lemma,) = (row for row in rows if row.startswith("| multi-epoch, Lemma I.1 |"))
    assert "It shows that an optimum exists" in lemma
