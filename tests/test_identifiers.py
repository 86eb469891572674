"""Client ids and rounds: which are missing, which look alike, and what an error says."""

import re
import unicodedata

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf import tables
from fedmf.identifiers import (
    check_clients,
    client_array,
    client_fault,
    round_fault,
    skeleton,
    visible_text,
)
from tests.refusals import refusal

NAN = float("nan")
NAT = np.datetime64("NaT")
EVERY_CHARACTER = [chr(code) for code in range(1, 0x110000) if not 0xD800 <= code < 0xE000]


def visible_texts_in_sql(texts):
    with duckdb.connect() as database:
        rows = database.execute(
            f"SELECT {tables.visible_text_sql('text')} FROM (SELECT unnest(?) AS text, unnest(?) "
            "AS row_index) ORDER BY row_index",
            [texts, [*range(len(texts))]],
        ).fetchall()
    return [text for (text,) in rows]


class TestPythonAndSqlAgree:
    """The visible text is computed in SQL for logs, and in Python for arrays."""

    @pytest.mark.slow
    def test_every_character_has_the_same_visible_text_in_python_and_sql(self):
        # Each character is between letters, of which it may be composed with the first. Unassigned
        # characters are omitted, since Python and DuckDB have different versions of Unicode.
        assigned = [
            character for character in EVERY_CHARACTER if unicodedata.category(character) != "Cn"
        ]
        texts = [f"a{character}b" for character in assigned]
        different = [
            text
            for text, of_sql in zip(texts, visible_texts_in_sql(texts), strict=True)
            if visible_text(text) != of_sql
        ]
        assert different == []
        assert len(assigned) > 280_000

    def test_blanks_around_an_invisible_character_form_one_blank(self):
        texts = [
            f"a{middle_text}b"
            for middle_text in (" \u200b ", "\u00a0\u2060\u00a0", " \u00ad ", " \u2800 ", "  ")
        ]
        assert (
            visible_texts_in_sql(texts)
            == [visible_text(text) for text in texts]
            == ["a b"] * len(texts)
        )

    @settings(max_examples=30, deadline=None)
    @given(
        st.lists(
            st.text(
                st.sampled_from(
                    "ae \u0301\u0308\u0327\u00e9\u200b\u00a0\u2003\u3164\ufe0f\t\n"
                    "\u1100\u1161\u0323\u0307"
                )
            ).filter(lambda text: "\0" not in text),
            min_size=1,
            max_size=30,
        )
    )
    def test_texts_have_the_same_visible_text_in_python_and_sql(self, texts):
        assert visible_texts_in_sql(texts) == [visible_text(text) for text in texts]


class TestSkeletons:
    """Ids with the same skeleton count as one client."""

    @pytest.mark.parametrize(
        ("text", "alike"),
        [
            ("ABEHIKM", "\u0391\u0392\u0395\u0397\u0399\u039a\u039c"),
            ("NOPTXYZ", "\u039d\u039f\u03a1\u03a4\u03a7\u03a5\u0396"),
            ("aiopuv", "\u03b1\u03b9\u03bf\u03c1\u03c5\u03bd"),
            ("ABEKMHO", "\u0410\u0412\u0415\u041a\u041c\u041d\u041e"),
            ("PCTXSIJY", "\u0420\u0421\u0422\u0425\u0405\u0406\u0408\u0423"),
            ("aeopcxyisj", "\u0430\u0435\u043e\u0440\u0441\u0445\u0443\u0456\u0455\u0458"),
            ("Az09-_@", "\uff21\uff5a\uff10\uff19\uff0d\uff3f\uff20"),
            ("Ann 7", "\U0001d400\U0001d5c7\U0001d62f\u2003\U0001d7d5"),
            ("XVII", "\u2169\u2164\u2160\u2160"),
            ("user-1", "user\u20111"),
            ("O'Brien", "O\u2019Brien"),
            ("\u00cb\u00e8", "\u0401\u0450"),
            ("\u00c1", "\u0386"),
            ("\u0661\u0667", "\u06f1\u06f7"),
            ("\u0643\u0649", "\u06a9\u06cc"),
            ("fiIJ...", "\ufb01\u0132\u2026"),
            ("\u4e00\u30a2\u03bc", "\u2f00\uff71\u00b5"),
            ("an n", "an\tn"),
            ("an n", "an\r\n\u200bn"),
        ],
    )  # fmt: skip
    def test_letters_that_look_alike_have_one_skeleton(self, text, alike):
        assert skeleton(alike) == skeleton(text) == text
        for form in ("NFC", "NFD"):
            assert skeleton(unicodedata.normalize(form, alike)) == text

    @given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
    def test_the_skeleton_of_ascii_is_the_text_with_single_blanks(self, text):
        assert skeleton(text) == re.sub("  +", " ", text)

    @given(st.text())
    def test_a_skeleton_is_its_own_skeleton_and_that_of_every_composition(self, text):
        assert skeleton(skeleton(text)) == skeleton(text)
        assert skeleton(unicodedata.normalize("NFD", text)) == skeleton(text)

    def test_words_of_one_script_have_different_skeletons(self):
        cyrillic = ("\u0430\u043d\u043d\u0430", "\u0438\u043d\u043d\u0430", "\u043e\u043b\u044f")
        greek = (
            "\u03c3\u03bf\u03c6\u03af\u03b1",
            "\u03bf\u03bf\u03c6\u03af\u03b1",
            "\u03ac\u03bd\u03bd\u03b1",
        )
        arabic = ("\u0664", "\u06f4", "\u0628", "\u062a", "4")
        other_words = ("\u017f", "s", "\u314e\u314f", "\ud558", "\u00b4", "\u00b8", "\u00bd")
        words = (*cyrillic, *greek, *arabic, *other_words)
        assert len({skeleton(word) for word in words}) == len(words)


@pytest.mark.parametrize(
    ("ids", "position"),
    [
        ([1, None], 1),
        (["a", NAN, "b"], 1),  # numpy would convert it to the text "nan".
        (np.array([1.0, NAN, NAN]), 1),
        (np.array(["a", None], object), 1),
        (np.array(["2026-01-01", "NaT"], "M8[D]"), 1),
        (np.array([1, "NaT"], "m8[s]"), 1),
        ([np.datetime64("2026-01-01"), NAT], 1),
        (np.ma.array([1, 2, 3], mask=[False, False, True]), 2),
        (np.array([1 + 0j, complex(NAN, 0)]), 1),
    ],
)
def test_missing_ids_are_refused_with_their_position(ids, position):
    with refusal(rf"client_ids\[{position}\]=.* is missing"):
        client_array("client_ids", ids)


@pytest.mark.parametrize("ids", [["a", ""], ["  "], ["\u200b"], np.array(["a", "\u3164"])])
def test_texts_without_a_visible_character_are_refused(ids):
    with refusal("has no visible character"):
        client_array("client_ids", ids)


@pytest.mark.parametrize(
    "ids",
    [
        ["ann", "an\u200bn"],
        ["zo\u00e9", "zoe\u0301"],
        ["ann lee", "ann\u00a0lee"],
        ["ann", "ann "],
        ["\ufeffann", "ann"],
        [1, "1"],
        np.array([1, "1"], object),
        np.array(["ann", "ann\u3164"]),
        ["ann", "\u0430nn"],
    ],
)
def test_look_alikes_are_refused(ids):
    with refusal("which look alike"):
        client_array("client_ids", ids)


def test_ids_that_do_not_look_alike_are_accepted():
    for ids in (
        ["nan", "NaT", "None", "a"],
        ["Ann", "ann"],
        ["7", "07"],
        ["\u263a\ufe0f", "\u263b"],
        ["a", "a"],
    ):
        assert client_array("client_ids", ids).tolist() == ids
        check_clients("client_ids", ids)
    assert client_array("client_ids", np.arange(3) % 2).tolist() == [0, 1, 0]
    with refusal("client_ids mixes kinds", TypeError):
        client_array("client_ids", np.array([1, "b"], object))


@pytest.mark.parametrize(
    ("t", "fault"),
    [
        ("3", None), ("0", None), ("7", None), ("007", None), ("8", "beyond"),
        ("9" * 30, "beyond"), ("-1", "negative"), ("3.5", "whole"),
        ("1e0", "whole"), ("+1", "whole"), (".5", "whole"), ("", "missing"), (None, "missing"),
        ("NaN", "missing"), (" 1", "blanks"),
        ("1\u00a0", "blanks"), ("1\u200b", "invisible"), ("\t1", "blanks"),
        ("\x001", "invisible"),
        ("x", "not a number"), ("\u0663", "not a number"),
        ("0x1", "not a number"),
    ],
)  # fmt: skip
def test_round_fault_describes_the_fault(t, fault):
    description = round_fault(t, 0, 7)
    assert description is None if fault is None else fault in description


def test_round_fault_counts_from_the_first_round():
    assert "before the first round" in round_fault("0", 1, 8)
    assert round_fault("8", 1, 8) is None


@pytest.mark.parametrize(
    ("client", "fault"),
    [("ann", None), ("an n", None), (None, "missing"), ("", "missing"), (" a", "blanks"),
     ("a\u2003", "blanks"),
     ("a\u200b", "invisible"), ("\x00a", "invisible"), ("\u3164", "visible")],
)  # fmt: skip
def test_client_fault_describes_the_fault(client, fault):
    description = client_fault(client)
    assert description is None if fault is None else fault in description
