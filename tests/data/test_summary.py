from pathlib import Path

import pytest

from support.pages import Page
from wm_plugin.data import expand
from wm_plugin.data.easy import Distances, write_filtered
from wm_plugin.data.schema import Action, Call, Context, Observation, Trajectory, Turn
from wm_plugin.data.summary import Summary, spread, summarize
from wm_plugin.data.summary_page import write_page
from wm_plugin.data.write import write_transitions
from wm_plugin.errors import UserError
from wm_plugin.objectives.information import KEEP, MEANING


def turn(arguments, text, *, tool="search", error=False, actor="agent"):
    action = Action(calls=(Call(name=tool, arguments=arguments),))
    return Turn(
        action=action, observations=(Observation(kind="tool", text=text, tool=tool, call=0, error=error),), actor=actor
    )


WON = Trajectory(
    turns=(turn({"q": "red"}, "nothing found", error=True), turn({"q": "blue"}, ""), turn({}, "x", actor="user")),
    context=Context(initial_state="two boxes"),
    task_id="a",
    success=True,
    reward=1.0,
)
LOST = Trajectory(
    turns=(
        Turn(action=Action(text="go north"), observations=(Observation(kind="environment", text="A wall stops you."),)),
    ),
    task_id="b",
    success=False,
    reward=0.0,
)


def summary(*records, **options):
    figures = Summary(**options)
    for record in records:
        figures.add(record)
    return figures


def test_figures_by_hand():
    figures = summary(WON, LOST).as_dict()
    assert figures["trajectories"] == 2
    assert figures["transitions"] == 3  # what the user observed is no target
    assert figures["tasks"] == 2
    assert figures["observations"] == {"tool": 2, "user": 0, "environment": 1}
    assert figures["success_share"] == 0.5
    assert figures["mean_reward"] == 0.5
    assert figures["turns"] == {"min": 1, "median": 1.5, "p95": 2, "max": 2}
    assert figures["observation_length"] == {"min": 0, "median": 13, "p95": 17, "max": 17}
    assert figures["action_length"]["min"] == len("go north")
    assert figures["error_share"] == pytest.approx(1 / 3)
    assert figures["empty_share"] == pytest.approx(1 / 3)
    assert list(figures["tools"]) == ["search", "(environment)"]  # the most frequent first
    assert figures["tools"]["search"]["error_share"] == 0.5
    # nothing of `search {"q": "red"}` is in `nothing found`, which is shorter: an action; empty text is other
    assert figures["categories"]["action"] == pytest.approx(1 / 3)
    assert figures["categories"]["retrieval"] == pytest.approx(1 / 3)
    assert figures["categories"]["other"] == pytest.approx(1 / 3)
    assert figures["kept_by_information"] == 1.0
    figures = summary(LOST, measure=lambda text: len(text.split())).as_dict()
    assert (figures["unit"], figures["observation_length"]["max"]) == ("tokens", 4)


def test_rows_without_a_task_are_tasks_of_their_own():
    apart = [record.model_copy(update={"task_id": ""}) for record in (WON, LOST)]
    assert summary(*apart).as_dict()["tasks"] == summary(*expand(apart)).as_dict()["tasks"] == 2


def test_transitions_give_what_their_trajectories_give():
    whole, parts = summary(WON, LOST).as_dict(), summary(*expand([WON, LOST])).as_dict()
    for key in ("transitions", "tasks", "observations", "observation_length", "tools", "categories", "error_share"):
        assert whole[key] == parts[key]
    assert parts["turns"] is None
    assert parts["success_share"] is None
    assert [s.before for s in summary(*expand([WON])).samples] == ["two boxes", "nothing found"]
    assert [s.before for s in summary(WON).samples] == ["two boxes", "nothing found"]


def test_every_transition_may_be_a_sample():
    places = set()
    for seed in range(40):
        drawn = summary(*[LOST.model_copy(update={"task_id": str(n)}) for n in range(6)], samples=2, seed=seed).samples
        assert len(drawn) == 2
        places |= {sample.where for sample in drawn}
    assert len(places) == 6


def test_scores_of_other_transitions_give_no_share_of_easy_ones(tmp_path):
    path, made = tmp_path / "t.jsonl", list(expand([WON, LOST]))
    rows = [Distances(one.trajectory, one.turn, one.observation.call, (number % 2,)) for number, one in enumerate(made)]
    write_filtered(made, rows, path, threshold=0.5, keep=0.0)
    figures = summarize(path, Summary())
    assert (figures["transitions"], figures["easy_share"], figures["easy_of"]) == (1, pytest.approx(2 / 3), 3)
    write_transitions(made[:1], path)
    figures = summarize(path, Summary())
    assert "easy_share" not in figures
    assert "t.easy.jsonl has the scores of other transitions" in figures["notes"][0]


def test_nothing_gives_no_figure():
    figures = summary().as_dict()
    assert figures["observation_length"] is figures["error_share"] is spread([]) is None


def written(tmp_path, *summaries):
    pytest.importorskip("jinja2")
    named = {f"{'abc'[number]}.jsonl": (one, one.as_dict()) for number, one in enumerate(summaries)}
    return write_page(named, tmp_path / "p.html").read_text()


def test_the_page_escapes_what_it_shows_and_marks_what_it_cuts(tmp_path):
    evil = LOST.model_copy(
        update={"turns": (turn({"q": "<script>alert(1)</script>"}, "<b>\x1b[31m" + "y" * 5000, tool="<i>" * 100),)}
    )
    text = written(tmp_path, summary(evil), summary(WON))
    page = Page(text, "What a.jsonl and b.jsonl hold")
    assert "<b>\\x1b[31m" in page.text
    assert "3,808 of 5,008 characters are not shown" in page.text
    assert max(map(len, page.cells)) < 100
    assert any(cell.startswith("<i><i>") and "…" in cell for cell in page.cells)
    assert "nothing found" in page.text
    assert text.count("<h4>observation</h4>") == 3
    with pytest.raises(UserError, match="/dev/null is no folder"):
        write_page({"a": (summary(WON), summary(WON).as_dict())}, Path("/dev/null/p.html"))


def test_the_page_says_what_shares_are_of_and_what_categories_mean(tmp_path):
    page = Page(written(tmp_path, summary(WON, LOST)), "What a.jsonl holds")
    assert page.text.index("2 trajectories with 3 transitions; 33.3% (1 of 3) are errors") < page.text.index(
        "How to read"
    )
    for cell in ("50.0% (1 of 2)", "0.500 (of 2)", "33.3% (1 of 3)", "66.7% (2 of 3)", "0.0% (0 of 1)"):
        assert cell in page.cells, cell
    assert set(MEANING) == set(KEEP)
    for name, meaning in MEANING.items():
        assert [name, meaning] == page.cells[page.cells.index(name) :][:2]
        assert f"{KEEP[name]:.0%}" in page.cells


def test_the_page_of_many_tools_and_long_texts_is_bounded(tmp_path):
    turns = tuple(turn({}, "line\n" * 3000, tool=f"tool {number} " + "x" * 1000) for number in range(200))
    text = written(tmp_path, summary(WON.model_copy(update={"turns": turns})))
    page = Page(text, "What a.jsonl holds")
    assert len(text) < 60_000
    assert "150 less frequent tools are not shown" in page.text
    assert page.text.count("of 15,000 characters are not shown") >= 8
