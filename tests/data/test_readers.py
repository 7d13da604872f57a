"""Each format's rows, written by hand, become the turns that they mean; what does not fit is rejected, and never lost."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.formats import (
    BENCH,
    CHAT,
    DOCUMENTS,
    GOLD,
    NODE,
    OWN,
    SHARE,
    STABLE,
    STEP,
    SWE,
    SYSTEM,
    TAU2,
    TREE,
    TRL,
    VERL,
    WORLD,
    call,
    says,
    tool,
    user,
)
from wm_plugin.data import Trajectory, files, read
from wm_plugin.data.prompts import dialogue, load, render
from wm_plugin.data.readers import FORMATS, base, detect, read_rows, stabletoolbench
from wm_plugin.data.readers.base import Reject, number_of
from wm_plugin.data.readers.word2world import HIDDEN, SHOWN
from wm_plugin.data.schema import Action, Call
from wm_plugin.data.transitions import expand
from wm_plugin.errors import UserError

FAST = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def read_value(tmp_path: Path) -> Callable[..., list[Trajectory | Reject]]:
    def rows(value: Any, format: str = "auto", name: str = "12_x.json") -> list[Trajectory | Reject]:
        path = tmp_path / name
        path.write_text(json.dumps(value))
        return list(read_rows(path, format))

    return rows


@pytest.fixture
def one(read_value: Callable[..., Any]) -> Callable[..., Trajectory]:
    def only(value: Any, format: str = "auto") -> Trajectory:
        (result,) = read_value(value, format)
        assert isinstance(result, Trajectory), result
        return result

    return only


@pytest.fixture
def refused(read_value: Callable[..., Any]) -> Callable[..., Reject]:
    def only(value: Any, format: str = "auto") -> Reject:
        (result,) = read_value(value, format)
        assert isinstance(result, Reject), result
        return result

    return only


def chat(*messages: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"messages": list(messages), **more}]


def texts(trajectory: Trajectory) -> list[list[str]]:
    return [[observation.text for observation in turn.observations] for turn in trajectory.turns]


# --- every format ---


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("indent", [None, 2])
def test_each_format_is_known_by_its_beginning_on_one_line_and_on_many(name: str, indent: int | None, tmp_path: Path):
    path = tmp_path / "12_x.json"
    path.write_text(json.dumps(DOCUMENTS[name], indent=indent))
    assert detect(path, files.head(path)).__name__.rpartition(".")[2] == name
    (trajectory,) = read(path)
    assert [turn.actor for turn in trajectory.turns] == ["agent"] * len(trajectory.turns)
    assert sum(1 for _ in trajectory.observed()) >= 1


@pytest.mark.parametrize("name", [name for name in FORMATS if isinstance(DOCUMENTS[name], list)])
def test_formats_of_rows_are_read_from_lines_too(name: str, tmp_path: Path):
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\r\n" for row in DOCUMENTS[name] * 3))
    rows = list(read(path))
    assert len(rows) == 3
    if name != "own":
        assert [t.source.row for t in rows if t.source] == [0, 1, 2]


def test_a_document_of_lists_alone_is_of_no_format(tmp_path: Path):
    (tmp_path / "x.json").write_text(json.dumps({"a": [], "b": None}, indent=1))
    with pytest.raises(UserError, match="no known format"):
        list(read(tmp_path / "x.json"))
    with pytest.raises(UserError, match="tau2"):
        list(read(tmp_path / "x.json", "tau_2"))


def test_without_anyone_to_tell_the_first_rejected_row_raises(tmp_path: Path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps([{"messages": CHAT}, {"messages": 5}]))
    with pytest.raises(UserError, match="row 1: no list of messages"):
        list(read(path))
    left_out: list[Reject] = []
    assert len(list(read(path, on_reject=left_out.append))) == 1
    assert [(r.file, r.row, r.raw) for r in left_out] == [("x.json", 1, '{"messages": 5}')]


# --- chat messages ---


def test_a_turn_is_a_message_with_what_answers_it(one):
    result = one(chat(*CHAT, tools=[{"type": "function"}], id=5, task_id="t", score=2, success="False", reward="0.5"))
    assert result.context.model_dump(include={"task", "initial_state", "action_space"}) == {
        "task": "Be kind.",
        "initial_state": "hi",
        "action_space": ({"type": "function"},),
    }
    assert texts(result) == [["found"], ["thanks"]]
    assert (result.task_id, result.source.id, result.success, result.reward) == ("t", "5", False, 0.5)
    assert result.metadata == {"score": 2}


F, G = call("f", "{}", "a"), call("g", "{}", "b")
TWELVE = range(12)


@pytest.mark.parametrize(
    ("messages", "observed"),
    [
        (
            [
                says(None, *(call(f"f{n}", "{}", f"id{n}") for n in TWELVE)),
                *(tool(f"result {n}", f"id{n}") for n in reversed(TWELVE)),
            ],
            [[(f"f{n}", f"result {n}") for n in TWELVE]],
        ),
        (  # repeated ids: by position
            [says(None, call("f", "{}", "x"), call("g", "{}", "x")), tool("0", "x"), tool("1", "x")],
            [[("f", "0"), ("g", "1")]],
        ),
        ([says(None, F, G), tool("of g", "?"), tool("of f", "a")], [[("f", "of f"), ("g", "of g")]]),  # an unknown id
        (  # a late result
            [says(None, F), user("and?"), says(None, G), tool("F", "a"), tool("G", "b")],
            [[("f", "F"), (None, "and?")], [("g", "G")]],
        ),
    ],
)
def test_results_find_their_calls(one, messages, observed):
    result = one(chat(*messages))
    assert [[(o.tool, o.text) for o in turn.observations] for turn in result.turns] == observed
    results = [o for o in result.turns[0].observations if o.tool]
    assert [o.call for o in results] == list(range(len(results)))


def test_old_files_have_no_ids(one):
    legacy = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}}
    result = one(chat(user("hi"), legacy, {"role": "function", "name": "f", "content": "1"}, says("so")))
    assert result.turns[0].action.calls[0].model_dump() == {"name": "f", "arguments": {"a": 1}, "id": None}
    assert texts(result) == [["1"], []]


@pytest.mark.parametrize("key", ["tool_call_id", "id", "tool_call_ids"])
@pytest.mark.parametrize("identity", ["b", 2])
def test_the_id_of_a_result_has_three_names_and_two_types(one, key, identity):
    answer = {"role": "tool", "content": "of g", key: [identity] if key == "tool_call_ids" else identity}
    (turn,) = one(chat(says(None, F, call("g", "{}", identity)), answer)).turns
    assert [(o.tool, o.call) for o in turn.observations] == [("g", 1)]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("", ""),
        ("\tx\r\n", "\tx\r\n"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ({"é": 1}, '{"é": 1}'),
        ([1, 2], "[1, 2]"),
        (1.5, "1.5"),
        (False, "false"),
        ("###STOP###", "###STOP###"),
    ],
)
def test_contents_of_every_type(one, content, text):
    result = one(chat(says(content, call("f")), tool(content), user(content)))
    assert result.turns[0].action.text == text
    assert texts(result) == [[text, text]]
    assert texts(one(chat({"role": "assistant", "tool_calls": [call("f")]}, {"role": "tool"}))) == [[""]]  # absent


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ('{"a": ', '{"a": '),
        ("", ""),
        (None, None),
        ("1" * 5000, "1" * 5000),
        ("[" * 250 + "]" * 250, "[" * 250 + "]" * 250),
        ('{"a": NaN}', {"a": "NaN"}),
    ],
)
def test_arguments_are_json_or_stay_as_they_are(one, arguments, value):
    assert one(chat(says(None, call("f", arguments)))).turns[0].action.calls[0].arguments == value


def test_thoughts_and_refusals_are_kept(one):
    result = one(chat(says("a", reasoning_content="hm"), says(None, refusal="no")))
    assert [(t.action.text, t.action.thought) for t in result.turns] == [("a", "hm"), ("no", None)]


@pytest.mark.parametrize(
    ("error", "flag", "data"),
    [(True, True, {}), (False, False, {}), ("true", True, {}), (None, False, {}), ("boom", True, {"error": "boom"})],
)
def test_errors_are_flags_or_text(one, error, flag, data):
    (observation,) = one(chat(says(None, call("f")), tool("x", error=error))).turns[0].observations
    assert (observation.error, observation.data) == (flag, data)


def test_messages_of_the_assistant_in_a_row_are_turns_of_their_own(one):
    assert texts(one(chat(says("a"), says("b"), user("c"), user("d")))) == [[], ["c", "d"]]


def test_what_the_system_says_in_the_middle_is_observed_and_not_known_before(one):
    result = one(chat(SYSTEM, user("hi"), says("a"), {"role": "developer", "content": "now in French"}, says("b")))
    assert result.context.task == "Be kind."
    assert [(o.kind, o.text, o.data) for _, _, o in result.observed()] == [
        ("environment", "now in French", {"role": "developer"})
    ]


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([tool("x", "a")], "message 1 is a tool's result, but no call is unanswered (it names the call 'a')"),
        ([says(None, call("f")), tool("x"), tool("y")], "message 3 is a tool's result"),
        ([user("x"), 5], "message 2 is int, not an object"),
        ([{"role": "narrator"}], "message 1 has the role 'narrator'"),
        ([{"role": ["user"]}], "message 1 has the role"),
        ([says(None, {"function": {"arguments": "{}"}})], "tool call without a name"),
        ([{"role": "assistant", "tool_calls": "f()"}], "tool_calls that are no list"),
        ([{"role": "assistant", "tool_calls": 5, "function_call": {"name": "f"}}], "tool_calls that are no list"),
        ([{"role": "assistant", "function_call": "f"}], "tool_calls that are no list"),
        ([says(None, call("f")), tool("x", name=5)], "valid string"),
    ],
)
def test_what_has_no_place_is_rejected_with_the_reason(refused, messages, reason):
    result = refused(chat(*messages))
    assert reason in result.reason
    assert json.loads(result.raw) == {"messages": messages}


def test_tools_may_be_text(one, refused):
    assert one(chat(says("a"), tools='[{"name": "f"}]')).context.action_space == ({"name": "f"},)
    assert "`tools` is no list" in refused(chat(says("a"), tools="f")).reason


def test_users_who_call_tools_observe_their_own_results(one):
    mine, theirs = call("reboot", {}, "u"), call("lookup", {}, "a")
    messages = [
        says("Hello!"),
        user("no signal"),
        says(None, theirs),
        tool("a plan", None, id="a", requestor="assistant"),
        says("Reboot it."),
        {"role": "user", "content": None, "tool_calls": [{**mine, "requestor": "user"}]},
        tool("rebooted", None, id="u", requestor="user", error=False),
        user("done"),
    ]
    result = one({**TAU2, "simulations": [{**TAU2["simulations"][0], "messages": messages}]})
    assert [(t.actor, [o.text for o in t.observations]) for t in result.turns] == [
        ("agent", ["no signal"]),
        ("agent", ["a plan"]),
        ("agent", ["done"]),
        ("user", ["rebooted"]),
    ]
    assert [o.kind for _, _, o in result.observed()] == ["user", "tool", "user"]


def test_tau2_keeps_policy_reward_and_the_rest(one, refused):
    result = one(TAU2)
    assert (result.context.task, result.task_id, result.source.id) == ("Sell.", "shop/4", "x")
    assert (result.reward, result.success) == (1.0, True)
    assert result.metadata == {"reward_info": {"reward": 1.0}, "seed": 3}
    assert "simulations" in refused({**TAU2, "simulations": []}).reason


@pytest.mark.parametrize(("reward", "success"), [("1.0", True), (0, False), ("nan", None), (None, None), ("?", None)])
def test_taubench_rewards(one, reward, success):
    result = one([{"task_id": 0, "reward": reward, "traj": CHAT, "trial": 1}])
    assert (result.task_id, result.success) == ("0", success)
    assert result.metadata == {"trial": 1, **({"reward": reward} if success is None and reward else {})}


# --- steps of environments ---


def test_scienceworld_writes_numbers_and_flags_as_strings(one):
    last = {**STEP, "score": "1.0", "isCompleted": "true", "observation": ""}
    gold = {**GOLD, "goldActionSequences": [{**GOLD["goldActionSequences"][0], "path": [STEP, last]}]}
    result = one({"0": gold})
    assert (result.task_id, result.success, result.reward, result.metadata) == ("boil/3", True, 1.0, {"fold": "dev"})
    assert texts(result) == [["a hall"], [""]]
    assert result.turns[0].observations[0].data == {"score": 0.04, "completed": False, "inventory": "nothing"}


def test_scienceworld_without_flags_claims_no_failure(one):
    gold = {**GOLD, "goldActionSequences": [{"path": [{"action": "go", "observation": None, "score": "high"}]}]}
    result = one({"0": gold})
    assert (result.success, result.reward) == (None, None)
    assert result.turns[0].observations[0].data["score"] == "high"
    assert texts(result) == [[""]]


@pytest.mark.parametrize(
    ("state", "kept"), [('{"d": 1}', {"d": 1}), ({"d": 1}, {"d": 1}), ("{", {"text": "{"}), (None, None)]
)
def test_sweagent_states_are_text_or_objects(one, state, kept):
    history = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "demo", "is_demo": True},
        {"role": "user", "content": [{"type": "text", "text": "issue"}]},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "later"},
    ]
    step = {**SWE["trajectory"][0], "state": state, "execution_time": 2}
    result = one({"trajectory": [step], "history": history, "info": {"exit_status": "submitted"}})
    assert (result.context.task, result.context.demonstrations, result.context.initial_state) == (
        "s",
        ("demo",),
        "issue",
    )
    assert result.turns[0].observations[0].data == {"execution_time": 2, **({"state": kept} if kept else {})}
    assert (result.task_id, result.turns[0].action.thought) == ("12_x", "look")
    assert result.metadata == {"info": {"exit_status": "submitted"}}


def test_stabletoolbench_each_leaf_ends_a_trajectory(read_value):
    late = {"node_type": "Thought", "description": "hm", "children": [{"node_type": "Action", "description": "never"}]}
    fork = {**TREE, "children": [{**NODE, "children": [late, TREE]}]}
    first, second = read_value({**STABLE, "tree": {"tree": {"node_type": "Action Input", "children": [fork]}}})
    assert [(t.action.calls[0].name, t.action.thought, len(t.observations)) for t in first.turns] == [
        ("find", None, 1),
        ("never", "hm", 0),
    ]
    assert texts(second) == [[""], [""]]
    assert (first.task_id, second.source.id, second.success, first.success) == ("12", "12/1", True, None)
    assert first.turns[0].observations[0].data == {"simulated": True, "code": 0}


def test_stabletoolbench_rejects_steps_of_other_kinds(refused):
    odd = {"node_type": "Dream", "description": "x", "children": []}
    assert "'Dream'" in refused({**STABLE, "tree": {"tree": {"children": [odd]}}}).reason
    assert "children" in refused({**STABLE, "tree": {"tree": {"children": [5]}}}).reason


def test_react_thoughts_are_no_transitions(one):
    text = "Room.\n> think: a\nOK.\n> think: b\nOK. \n>go\nHall.\nBig.\n> look\n\n> think: done\nOK."
    result = one({"put": text}, "react")
    assert result.context.initial_state == "Room."
    assert [(t.action.text, t.action.thought) for t in result.turns] == [("go", "a\nb"), ("look", None), ("", "done")]
    assert texts(result) == [["Hall.\nBig."], [""], []]


def test_react_an_answer_to_a_thought_other_than_ok_is_not_lost(one):
    result = one({"put": "> think: a\r\nNothing happens.\r\n> go"}, "react")
    assert [t.action.text for t in result.turns] == ["think: a", "go"]
    assert texts(result) == [["Nothing happens."], []]


def test_sharegpt_instructions_come_before_the_first_turn(one):
    result = one([SHARE])
    assert result.context.initial_state == "rules\n\nOK\n\na room"
    assert [(t.action.text, t.action.thought) for t in result.turns] == [("go", "Thought: hm")]
    assert (texts(result), result.task_id) == ([[""]], "alf_1")


@pytest.mark.parametrize(
    ("value", "success"), [(True, True), ("False", False), ("true", True), (1, True), (None, None), ("partly", None)]
)
def test_sharegpt_success_is_written_in_many_ways(one, value, success):
    result = one([{**SHARE, "success": value, "reward": "0.5", "system": "s", "source": "web"}])
    assert (result.success, result.reward, result.context.task) == (success, 0.5, "s")
    assert result.metadata == {"source": "web", **({"success": value} if value == "partly" else {})}


def test_sharegpt_unknown_speakers_are_rejected(refused):
    assert "'ghost'" in refused([{"conversations": [{"from": "ghost", "value": "x"}]}]).reason


def test_word2world_the_user_acts_and_the_assistant_is_the_world(one, refused):
    result = one([WORLD])
    assert [t.action.text for t in result.turns] == ["go", "take it"]
    assert (texts(result), result.success, result.context.task) == ([["a hall"], ["yours"]], True, "Be kind.")
    ends = one([{"messages": [user("go"), says("a hall"), user("wait")]}], "word2world")
    assert (texts(ends), ends.success) == ([["a hall"], []], False)
    assert "out of turn" in refused([{"messages": [user("a"), user("b")]}], "word2world").reason


FAILED = {"messages": [SYSTEM, user("take it"), says("Nothing happens."), user("go"), says("a hall")]}


def written(folder: Path, *rows: Any) -> Path:
    path = folder / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_word2world_what_is_not_to_be_trained_on_is_no_target(one):
    result = one([{"messages": [user("a"), says("b", weight=0), user("c"), says("d", weight=1)]}], "word2world")
    assert [turn.observations[0].data for turn in result.turns] == [{"target": False}, {}]


def test_word2world_is_told_though_its_first_episodes_failed(tmp_path):
    made = list(read(written(tmp_path, *[FAILED] * 30, WORLD)))
    assert [t.success for t in made] == [False] * 30 + [True]
    assert all(t.turns[0].action.text in ("take it", "go") for t in made)  # the user's


def test_the_system_message_of_a_failed_episode_may_tell(tmp_path):
    system = "Simulate.\n# Environment Information (Only visible to Assistant)\nOn the shelf 1, you see a mug 1."
    row = {"messages": [{"role": "system", "content": system}, *FAILED["messages"][1:]]}
    (made,) = read(written(tmp_path, row))
    assert [turn.action.text for turn in made.turns] == ["take it", "go"]
    assert (made.context.task, made.context.world_context) == ("Simulate.", "On the shelf 1, you see a mug 1.")


CALLS = {"messages": CHAT}
# an agent may be told to write the mark, too
ASKED = {"messages": [{"role": "system", "content": 'When you are done, say " [SUCCESS]".'}, *FAILED["messages"][1:]]}


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([FAILED], "no success mark in its first 1 row;"),
        ([FAILED] * 3, "no success mark in its first 3 rows;"),
        ([ASKED], "no success mark in its first 1 row;"),
        ([FAILED, {"messages": [says("hello"), user("hi")]}], "no success mark in its first 2 rows;"),
        ([WORLD, CALLS], "some of its first 2 rows call tools"),
        ([CALLS, FAILED, WORLD], "some of its first 3 rows call tools"),
    ],
)
def test_dialogues_that_fit_two_formats_name_both(tmp_path, rows, why):
    path = written(tmp_path, *rows)
    with pytest.raises(UserError, match=why) as refusal:
        list(read(path))
    assert "--format openai" in str(refusal.value)
    assert "--format word2world" in str(refusal.value)
    for name in ("openai", "word2world"):
        assert list(read(path, name, on_reject=lambda _: None))


def test_chats_of_an_agent_are_no_dialogues_with_a_world(tmp_path):
    """Without a system message, or with a call somewhere."""
    (made,) = read(written(tmp_path, {"messages": FAILED["messages"][1:]}))
    plain, called = read(written(tmp_path, FAILED, CALLS))
    assert made.turns[0].action.text == plain.turns[0].action.text == "Nothing happens."  # the assistant's
    assert called.turns[0].action.calls


def test_the_hidden_state_of_word2world_is_no_part_of_what_the_agent_saw(one):
    system = (
        "Simulate.\n# Environment Information (Only visible to Assistant)\n- In drawer 1, a mug 1.\n"
        "# User Environment Information (Displayed to User)\nYou are in a room."
    )
    context = one([{"messages": [{"role": "system", "content": system}, *WORLD["messages"][1:]]}]).context
    assert (context.task, context.world_context) == ("Simulate.", "- In drawer 1, a mug 1.")
    assert context.initial_state == "You are in a room."


PAIR = (
    'API doc: {"api_name": "codes"}\nRequest: {"tool_input": {"country": "JP"}}',
    '{"error": "", "response": "[1, 2]"}',
)


def test_a_late_action_of_sharegpt_leaves_the_turns_before_it(one):
    said = ["look", "go north", "I think. Action: open door"]
    messages = [one for text in said for one in ({"from": "human", "value": "?"}, {"from": "gpt", "value": text})]
    assert [turn.action.text for turn in one([{"conversations": messages}]).turns] == ["look", "go north", "open door"]


@pytest.mark.parametrize("system", [True, False])
@pytest.mark.parametrize("form", ["messages", "sharegpt", "conversations"])
def test_pairs_of_stabletoolbench_are_of_a_world_whose_success_nobody_knows(tmp_path, form, system):
    texts = [*(["You are a server."] if system else []), *PAIR]
    said = [*(["system"] if system else []), "human" if form == "sharegpt" else "user"]
    roles = [*said, "gpt" if form == "sharegpt" else "assistant"]
    names = ("from", "value") if form == "sharegpt" else ("role", "content")
    messages = [dict(zip(names, pair, strict=True)) for pair in zip(roles, texts, strict=True)]
    path = written(tmp_path, *[{"messages" if form == "messages" else "conversations": messages, "id": 3}] * 2)
    trajectory, _ = read(path)
    assert (trajectory.turns[0].action.text, trajectory.success, trajectory.task_id) == (PAIR[0], None, "3")
    assert [one.observation.text for one in expand([trajectory])] == [PAIR[1]]
    prompt = dialogue(trajectory, load("word2world")).messages
    assert "[SUCCESS]" not in str(prompt)
    assert prompt[-2:] == [{"role": "user", "content": PAIR[0]}, {"role": "assistant", "content": PAIR[1]}]


def test_rollouts_of_word2worlds_agent_are_read(one):
    said = ["Rules.", "OK, I follow them.", "A hall.", "Thought: hm\n\nAction: take key", "You have it.", "done"]
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(said)]
    result = one([{"conversations": messages, "item_id": "task_7", "reward": 1.0, "success": 1}])
    assert (result.task_id, result.reward, result.success) == ("task_7", 1.0, True)
    assert [(turn.action.text, turn.action.thought) for turn in result.turns] == [
        ("take key", "Thought: hm"),
        ("done", None),
    ]
    assert texts(result) == [["You have it."], []]
    assert result.context.initial_state == "Rules.\n\nOK, I follow them.\n\nA hall."


def test_the_released_layout_is_written_as_it_was_read(one):
    system = f"Find the key.\n\n{HIDDEN}\nThe key is in drawer 2.\n\n{SHOWN}\nYou see two drawers."
    messages = [{"role": "system", "content": system}, user("take key"), says("Nothing happens.")]
    messages += [user("open drawer 2"), says("A key. [SUCCESS]")]
    result = one([{"messages": messages}])
    released = load("word2world-released")
    assert dialogue(result, released, world_context=True).messages == messages
    assert "drawer 2" not in dialogue(result, released).messages[0]["content"]
    calls = [turn.model_copy(update={"action": action(turn.action.text)}) for turn in result.turns]
    called = result.model_copy(update={"turns": tuple(calls)})
    assert dialogue(called, released, world_context=True).messages == messages
    *_, last = expand([called])
    assert [*render(last, released, world_context=True).messages, messages[-1]] == messages
    assert "act(" in str(dialogue(called, load("word2world")).messages)


def action(text: str) -> Action:
    return Action(calls=(Call(name="act", arguments={"command": text}),))


def test_word2world_rollouts_keep_what_the_model_said(one, refused):
    step = {"react": "Thought: x\nAction: go", "world_model_observation": "a room", "env_observation": "a hall"}
    result = one([{"conversation": [step], "item_id": "task_1", "success": "false", "reward": 0, "model": "m"}])
    assert (result.turns[0].action.text, texts(result)) == ("go", [["a hall"]])
    assert result.turns[0].observations[0].data == {"world_model": "a room"}
    assert (result.success, result.metadata) == (False, {"model": "m"})
    del step["env_observation"]
    assert "env_observation" in refused([{"conversation": [step]}], "word2world").reason


def test_agentworldbench_turns(one):
    two = {
        **BENCH,
        "id": "s7",
        "prompt": [*BENCH["prompt"], "**Action:** type", "no fence"],
        "response": ["o", "p"],
        "x": 1,
    }
    result = one([two])
    assert [t.action.text for t in result.turns] == ["click", "type", "no fence"]
    assert (texts(result), result.task_id, result.context.initial_state) == ([["o"], ["p"], []], "web/s7", "see")
    assert result.metadata == {"domain": "web", "turn": 1, "turns": 2, "x": 1}
    (turn,) = one([BENCH]).turns
    assert (turn.observations[0].text, turn.observations[0].data) == ("a page", {"before": "hm\n"})


def test_agentworldbench_surplus_responses_are_rejected(refused):
    assert "1 prompts, but 2 responses" in refused([{**BENCH, "response": ["a", "b"]}]).reason


@pytest.mark.parametrize("version", ["10", 10.0, None])
def test_a_version_that_the_schema_would_make_a_number_of_is_refused(refused, version):
    assert refused([{**OWN, "version": version}]).reason == "`version` is no whole number"
    assert "later release" in refused([{**OWN, "version": 99}]).reason


@pytest.mark.parametrize(
    ("value", "number"), [("0.5", 0.5), (3, 3.0), ("nan", None), ("", None), (True, None), ([], None), (10**400, None)]
)
def test_numbers_are_written_in_many_ways(value, number):
    assert number_of(value) == number


def test_verl_dumps_without_special_tokens(one, refused):
    result = one([VERL])
    assert [
        (t.action.text, t.action.thought, [(c.name, c.arguments) for c in t.action.calls]) for t in result.turns
    ] == [("", "<think>\nhm\n</think>", [("find", {"q": 1})]), ("done", None, [])]
    assert (texts(result), result.context.task, result.reward) == ([["found"], []], VERL["input"], 0.5)
    assert result.metadata == {"gts": "x", "step": 3}
    assert result.task_id == one([{**VERL, "output": VERL["output"] + "!"}]).task_id
    cut = VERL["output"].removesuffix("assistant\ndone")
    assert texts(one([{**VERL, "output": cut}])) == [["found"]]


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("just text", "no tool response is marked"),
        ("a <tool_response>\nx\n</tool_response> b", "no tool response is marked"),
        (f"a\nuser\nmore?\nassistant\n{VERL['output']}", "may be a role's or the text's"),
        (f"{VERL['output']}\nuser\n<tool_response>\ny\n</tool_response>", "no call is unanswered"),
        (None, "`output` is no text"),
    ],
)
def test_verl_dumps_that_cannot_be_told_apart_are_rejected(refused, output, reason):
    assert reason in refused([{**VERL, "output": output}]).reason


MARKED = (
    '<|im_start|>system\nBe kind.\n<tools>\n{"name": "find"}\n</tools><|im_end|>\n<|im_start|>user\nhi<|im_end|>\n'
    "<|im_start|>assistant\n"
)
SAID = (
    "look <tool_call>\n<function=find>\n<parameter=q>\n1\n</parameter>\n</function>\n</tool_call><tool_call>{</tool_call>"
    "<|im_end|>\n<|im_start|>user\n<tool_response>\na\n</tool_response><|im_end|>\n<|im_start|>assistant\ndone<|im_end|>\n"
    "<|im_start|>user\nthanks<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.mark.parametrize("row", [{**VERL, "input": MARKED, "output": SAID}, {"prompt": MARKED, "completion": SAID}])
def test_marks_of_roles_are_read(one, row):
    result = one([row])
    assert [(t.action.text, [(c.name, c.arguments) for c in t.action.calls]) for t in result.turns] == [
        ("look <tool_call>{</tool_call>", [("find", {"q": "1"})]),
        ("done", []),
    ]
    assert (texts(result), result.context.initial_state) == ([["a"], ["thanks"]], "hi")
    if "input" in row:
        assert result.context.action_space == ({"name": "find"},)


def test_trl_rows_keep_rewards_and_where_the_prompt_ended(one, refused):
    result = one([TRL])
    assert (texts(result), result.context.task) == ([["found"], ["thanks"]], "Be kind.")
    assert result.metadata == {"step": 1, "accuracy_reward": 1.0, "advantage": 0.1, "prompt_messages": 2}
    assert result.reward == 1.0
    assert one([{**TRL, "form_reward": 0.25, "left_out": float("nan"), "count": 7}]).reward == 1.25
    assert result.task_id == one([{**TRL, "completion": []}]).task_id
    assert one([{**TRL, "id": 4}]).task_id == "4"
    assert "plain text" in refused([{"prompt": "a", "completion": "b"}]).reason
    assert "neither" in refused([{"prompt": "a", "completion": []}]).reason


@pytest.fixture
def parquet(tmp_path: Path) -> Callable[..., Path]:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def write(*rows: dict[str, Any]) -> Path:
        parquet.write_table(pyarrow.Table.from_pylist(list(rows)), tmp_path / "x.parquet")
        return tmp_path / "x.parquet"

    return write


def test_parquet_gives_keys_to_all_that_one_has(parquet):
    """Its nulls are dropped: no argument is invented."""
    first = {"messages": [user("hi"), says(None, call("f", {"a": 1})), tool("x")], "when": b"\xff", "success": None}
    second = {"messages": [says(None, call("g", {"b": 2})), tool("y", "z")], "success": True}
    one, two = read(parquet(first, second))
    assert [t.turns[0].action.calls[0].arguments for t in (one, two)] == [{"a": 1}, {"b": 2}]
    assert (one.metadata, two.metadata, two.success) == ({"when": "\\xff"}, {}, True)
    assert [t.source.row for t in (one, two) if t.source] == [0, 1]


@pytest.mark.parametrize("name", ["openai", "sharegpt", "trl", "word2world"])
def test_formats_of_rows_are_read_from_parquet(name, parquet):
    rows = DOCUMENTS[name] * 70
    assert len(list(read(parquet(*rows)))) == 70


def test_verl_prompts_hold_no_rollouts(parquet):
    prompts = {"data_source": "x", "prompt": [user("hi")], "reward_model": {"style": "rule", "ground_truth": "4"}}
    with pytest.raises(UserError, match="prompts of verl's RL training, and no rollouts"):
        list(read(parquet(prompts)))


def test_what_of_a_message_has_no_field_is_kept_with_its_number(one):
    usage = {"tokens": 5}
    messages = [user("hi"), says("a", usage=usage, name="bob", cost=None, reasoning="r", thought="t"), user("b")]
    result = one(chat(*messages, score=1))
    assert result.metadata == {"message_data": {"2": {"usage": usage, "name": "bob", "thought": "t"}}, "score": 1}
    assert result.turns[0].action.thought == "r"


def test_stabletoolbench_says_which_turns_an_earlier_path_has(read_value):
    fork = {**TREE, "children": [{**NODE, "children": [TREE, {**TREE, "description": "other"}]}]}
    first, second = read_value({**STABLE, "tree": {"tree": {"node_type": "Action Input", "children": [fork]}}})
    assert [len(t.turns) for t in (first, second)] == [2, 2]
    assert [t.metadata["shared_turns"] for t in (first, second)] == [0, 1]


def test_what_each_trajectory_of_a_record_copies_is_bounded(read_value, monkeypatch):
    """The paths of a tree, gold paths beside large keys, and histories of a large request: a square of the record's size."""
    monkeypatch.setattr(base, "LARGEST", 20_000)
    monkeypatch.setattr(stabletoolbench, "LARGEST", 200_000)

    def tree(leaves: int) -> Any:
        children = [{"node_type": "Thought"}] * leaves
        for _ in range(50):
            children = [{"node_type": "Thought", "children": children}]
        return {**STABLE, "tree": {"tree": {"children": children}}}

    def histories(count: int) -> Any:
        items = [{"type": "message", "role": "assistant", "content": str(number)} for number in range(count)]
        request = {"input": "x" * 1000}
        return {"request": request, "response": {"output": [[item] for item in items]}}

    def gold(count: int) -> Any:
        return {"0": {**GOLD, "more": "x" * 1000, "goldActionSequences": GOLD["goldActionSequences"] * count}}

    for make, format in ((tree, "stabletoolbench"), (gold, "scienceworld"), (histories, "responses")):
        assert [type(row) for row in read_value(make(3), format)] == [Trajectory] * 3
        assert [row.kind for row in read_value(make(30), format)] == ["out of bounds"]


# --- properties ---


def conversations() -> st.SearchStrategy[list[dict[str, Any]]]:
    """Random conversations with parallel calls, whose results may come in another order, with or without ids."""

    @st.composite
    def build(draw: st.DrawFn) -> list[dict[str, Any]]:
        messages = [SYSTEM] * draw(st.integers(0, 1)) + [user("hi")] * draw(st.integers(0, 2))
        for number in range(draw(st.integers(1, 6))):
            count = draw(st.sampled_from([0, 0, 1, 2, 3, 12]))
            ids = draw(st.sampled_from(["own", "same", "none"]))
            names = [{"own": f"{number}-{n}", "same": "x", "none": None}[ids] for n in range(count)]
            messages.append(says(draw(st.sampled_from([None, "", "text"])), *(call("f", "{}", name) for name in names)))
            answers = [tool(draw(st.text(max_size=5)), name) for name in draw(st.permutations(names))]
            messages += answers[: draw(st.integers(0, count))]
            messages += [user("and?")] * draw(st.integers(0, 2))
        return messages

    return build()


@FAST
@given(conversations())
def test_every_result_and_every_reply_is_observed_once(tmp_path, messages):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"messages": messages}) + "\n")
    (trajectory,) = read(path, "openai")
    roles = [message["role"] for message in messages]
    after = roles[roles.index("assistant") :]
    kinds = [o.kind for _, _, o in trajectory.observed()]
    assert len(trajectory.turns) == roles.count("assistant")
    assert (kinds.count("tool"), kinds.count("user")) == (roles.count("tool"), after.count("user"))
    assert len(kinds) == roles.count("tool") + after.count("user")
    observed = sorted(o.text for _, _, o in trajectory.observed() if o.kind == "tool")
    assert observed == sorted(message["content"] for message in messages if message["role"] == "tool")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something is inside a JSON value."""
    for key, child in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(child, (*path, key))


JUNK = st.sampled_from(
    [None, True, 0, -1.5, 10**30, "", "x", "\ud800", [], [5], [[]], {}, {"a": 1}, [None], [{}], {"role": []}]
)


@settings(FAST, max_examples=300)
@given(st.data())
def test_a_mutated_row_is_read_or_rejected_and_nothing_else(tmp_path, data):
    name = data.draw(st.sampled_from(FORMATS))
    document = copy.deepcopy(DOCUMENTS[name])
    for _ in range(data.draw(st.integers(1, 2))):
        spot = data.draw(st.sampled_from(list(places(document)) or [()]))
        if not spot:
            break
        parent = document
        for key in spot[:-1]:
            parent = parent[key]
        if data.draw(st.booleans()):
            del parent[spot[-1]]
        else:
            parent[spot[-1]] = copy.deepcopy(data.draw(JUNK))
    path = tmp_path / "12_x.json"
    path.write_text(json.dumps(document))
    rows = list(read_rows(path, name))
    assert all(isinstance(row, Trajectory | Reject) for row in rows)
    assert rows
    if isinstance(document, list):
        assert len(rows) == max(len(document), 1)
    assert all(row.reason and row.raw for row in rows if isinstance(row, Reject) and row.kind != "empty")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("scienceworld", "{}"),
        ("scienceworld", "[[]]"),
        ("react", "{}"),
        ("react", '["> go"]'),
        ("own", "[]"),
        ("otel", "[]"),
    ],
)
def test_a_file_without_rows_is_rejected(name, text, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(text)
    (row,) = read_rows(path, name)
    assert (row.row, row.kind, row.reason) == (0, "empty", "the file holds no rows")
    with pytest.raises(UserError, match=r"x\.json, row 0: the file holds no rows"):
        list(read(path, name))


@FAST
@given(st.sampled_from(FORMATS), st.data())
def test_a_truncated_file_is_read_up_to_there(tmp_path, name, data):
    document = DOCUMENTS[name]
    rows = isinstance(document, list)
    line = json.dumps(document[0] if rows else document)
    cut = line[: data.draw(st.integers(1, len(line) - 1))]
    path = tmp_path / ("12_x.jsonl" if rows else "12_x.json")
    path.write_text(f"{line}\n{cut}" if rows else cut)
    kinds = [type(row) for row in read_rows(path, name)]
    assert kinds == [Trajectory, Reject] if rows else kinds[-1:] == [Reject]
