"""deepdive: the four tools, questions that take several pages, and a web of the user's own."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from support.cases import CASES
from wm_plugin.errors import UserError
from wm_plugin.hosting.world import tool_names
from wm_plugin.worlds import deepdive
from wm_plugin.worlds.deepdive import DeepdiveEnvironment, dataset_rows
from wm_plugin.worlds.deepdive.web import Web, is_right, questions, web_of
from wm_plugin.worlds.kit.protocol import tool_schema

PAGES = [
    {"title": "Ada Lovelace", "text": "Ada Lovelace worked with Charles Babbage.\n\n" + "word " * 100},
    {"title": "Charles Babbage", "text": "Charles Babbage was born in 1791.", "url": "https://mine.example/babbage"},
]
QUESTIONS = [{"question": f"When was the man born whom she worked with ({n})?", "answer": "1791"} for n in range(40)]


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    pytest.importorskip("bm25s")
    pytest.importorskip("re2")


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    """A web of the user's own, and questions about it."""
    for name, lines in (("pages", PAGES), ("questions", QUESTIONS)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return {"corpus": str(tmp_path / "pages.jsonl"), "questions": str(tmp_path / "questions.jsonl")}


def test_it_has_the_papers_tools_and_turns() -> None:
    assert tool_names(DeepdiveEnvironment) == ["finish", "open_lines", "scan_page", "search_web"]
    environment = DeepdiveEnvironment()
    environment.reset(**dataset_rows(1)[0])
    assert environment.max_turns == 200


@pytest.mark.host
def test_the_schemas_that_hosts_make() -> None:
    properties = tool_schema(DeepdiveEnvironment.search_web)["function"]["parameters"]["properties"]
    assert properties["queries"]["type"] == "array"
    scan = tool_schema(DeepdiveEnvironment.scan_page)["function"]["parameters"]
    assert (scan["properties"]["patterns"]["type"], scan["required"]) == ("array", ["url"])


@pytest.mark.parametrize("level", deepdive.LEVELS)
def test_the_expert_finds_every_answer_on_the_pages(level: str) -> None:
    environment, pages = DeepdiveEnvironment(), {"standard": 2, "hard-1": 3, "hard-2": 3}[level]
    for row in [*dataset_rows(20, seed=1, level=level), *dataset_rows(10, seed=1, held_out=True, level=level)]:
        assert len(row["prompt"][0]["content"]) < 1000
        environment.reset(**row)
        choose, texts, opened = deepdive.expert(), "", 0
        while not environment.over:
            tool, arguments = choose(environment)  # type: ignore[misc]
            text = getattr(environment, tool)(**arguments)
            if tool == "search_web":  # a page is found by its title
                assert f"{environment._web.by_title[arguments['queries'][0]].url}\n" in text
            texts, opened = texts + text, opened + (tool == "open_lines")
        assert environment.success
        assert row["answer"] in texts
        assert opened >= pages  # a row that is described may take one more
        assert environment.metrics["effective"] == environment.turns
        environment.reset(**row)
        environment.finish(f"{row['answer']}0")
        assert environment.get_reward() == 0.0


def test_no_page_and_no_result_has_a_whole_way_to_an_answer() -> None:
    """The page with the answer does not name where the question begins, so that several must be read."""
    web = web_of("1")
    for level in deepdive.LEVELS:
        for question in questions("1", level)[::97]:
            first, last = (web.by_title[question.trail[place]] for place in (0, -1))
            assert first.title.partition(": ")[0] not in "\n".join([last.title, *last.lines])
            assert any(question.answer in line for line in last.lines)


def test_splits_and_webs_share_no_question_and_the_split_seen_no_beginning() -> None:
    for level in deepdive.LEVELS:
        rows = {split: dataset_rows(90, seed=2, level=level, split=split) for split in deepdive.SPLITS}
        begins = {split: {row["trail"].partition("\n")[0].partition(": ")[0] for row in rows[split]} for split in rows}
        assert not begins["train"] & begins["seen"]
        assert not begins["unseen"] & (begins["train"] | begins["seen"])
        assert [{row["corpus"] for row in rows[split]} for split in deepdive.SPLITS] == [{"1"}, {"1"}, {"2"}]
    assert len(questions("1", "standard")) > 2230  # the paper's data set has 2.23k
    assert round(len(deepdive.web_of("1").pages), -2) == 3400  # docs/worlds.md


def test_an_episode(own: dict[str, str]) -> None:
    environment = DeepdiveEnvironment()
    assert (
        environment.reset(corpus=own["corpus"], answer="3,760 florins", unit="florins", max_turns=12)
        == "The web has 2 pages."
    )
    assert environment.search_web(["babbage born", "qqq"]) == (
        "# babbage born\n"
        "1. Charles Babbage\n   https://mine.example/babbage\n   Charles Babbage was born in 1791.\n"
        "2. Ada Lovelace\n   https://web.test/ada-lovelace\n   Ada Lovelace worked with Charles Babbage.\n"
        "# qqq\nnothing found"
    )
    about = "https://web.test/ada-lovelace\ntitle: Ada Lovelace\nsize: 6 lines, 537 characters"
    assert environment.scan_page("https://web.test/ada-lovelace") == about
    seen = environment.scan_page("https://web.test/ada-lovelace", ["love.* with", "^nothing"])
    assert seen == f"{about}\n1: Ada Lovelace worked with Charles Babbage."
    assert environment.open_lines(" https://mine.example/babbage ") == "1: Charles Babbage was born in 1791."
    assert (
        environment.open_lines("https://web.test/ada-lovelace", "1-2")
        == "1: Ada Lovelace worked with Charles Babbage.\n2: "
    )
    for text in (
        environment.open_lines("https://elsewhere.example"),
        environment.search_web("babbage"),  # type: ignore[arg-type]
        environment.search_web(["x"] * 6),
        environment.scan_page("https://mine.example/babbage", ["(a"]),
        environment.scan_page("https://mine.example/babbage", [r"(?=a)"]),
        environment.scan_page("https://mine.example/babbage", [" "]),
    ):
        assert text.startswith("Invalid: ")
        assert "\n" not in text
    assert environment.finish("3760").endswith("The answer is right. The episode is over.")
    assert (environment.over, environment.success, environment.get_reward()) == (True, True, 1.0)
    assert environment.metrics == {"actions": 12, "effective": 6, "invalid": 6}


def test_a_pattern_that_takes_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pages.jsonl"
    path.write_text(json.dumps({"title": "long", "text": "a" * 100_000}))
    environment = DeepdiveEnvironment()
    environment.reset(corpus=str(path), answer="x")
    seen = environment.scan_page("https://web.test/long", [r"(a?){999}" + "b"] * 5)
    assert seen.startswith("Invalid: ")


def test_many_pages_of_one_title_and_a_line_of_tabs_take_little_time() -> None:
    pages = [("Same", "", ""), ("Same", "", "https://web.test/same-2"), *[("Same", "", "")] * 20_000]
    pages.append(("Tabs", "a" + "\t" * 300_000 + "b\n  c  d", ""))
    start = time.process_time()
    web = Web(pages)
    assert time.process_time() - start < 5  # a minute without
    assert list(web.pages)[:3] == [f"https://web.test/same{end}" for end in ("", "-2", "-3")]
    assert web.by_title["Tabs"].lines == ["a b", "  c  d"]


@pytest.mark.parametrize(("submission", "answer", "unit", "right"), CASES["deepdive_answers"])
def test_answers(submission: str, answer: str, unit: str, right: bool) -> None:
    assert is_right(submission, answer, unit) is right


def test_rows_of_a_web_of_the_users_own(own: dict[str, str]) -> None:
    train, held_out = dataset_rows(60, max_turns=9, **own), dataset_rows(3, held_out=True, **own)
    texts = [{row["prompt"][0]["content"].rpartition("Question")[2] for row in rows} for rows in (train, held_out)]
    assert not texts[0] & texts[1]
    assert "at most 9 turns" in train[0]["prompt"][0]["content"]
    environment = DeepdiveEnvironment()
    environment.reset(**train[0])
    assert environment.max_turns == 9
    assert deepdive.expert()(environment) == ("finish", {"answer": "1791"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"corpus": "pages.jsonl"}, "corpus and questions go together"),
        ({"questions": "questions.jsonl"}, "corpus and questions go together"),
        ({"split": "unseen", "corpus": "pages.jsonl", "questions": "questions.jsonl"}, "has no split 'unseen'"),
        ({"level": "hard-1", "corpus": "pages.jsonl", "questions": "questions.jsonl"}, "has no level 'hard-1'"),
        ({"corpus": "none.jsonl", "questions": "questions.jsonl"}, "none.jsonl: No such file"),
        ({"corpus": "bad.jsonl", "questions": "questions.jsonl"}, "bad.jsonl': line 2: `text` needs a text"),
        ({"corpus": "pages.jsonl", "questions": "bad.jsonl"}, "bad.jsonl': line 1: `question` needs a text"),
        ({"corpus": "twice.jsonl", "questions": "questions.jsonl"}, "two pages have the address https://x.example"),
    ],
)
def test_rows_that_cannot_be(
    own: dict[str, str], arguments: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").write_text('{"title": "a", "text": "b"}\n{"title": "a"}\n')
    page = json.dumps({"title": "a", "text": "b", "url": "https://x.example"})
    Path("twice.jsonl").write_text(f"{page}\n{page}")
    web_of.cache_clear()
    with pytest.raises(UserError, match=message):
        dataset_rows(**{"count": 1} | arguments)
    web_of.cache_clear()
