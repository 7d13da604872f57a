"""Each filter on trajectories made for it."""

import pytest

from wm_plugin.data.failures import DOMAINS
from wm_plugin.data.filter import METHODS, NAMES, TRAJECTORY_FILTERS, TURN_FILTERS, Filter, left_out
from wm_plugin.data.schema import Action, Call, Context, Observation, Source, Trajectory, Turn
from wm_plugin.errors import UserError


def turn(action, observation=None, tool=None, actor="agent"):
    calls = (Call(name=tool),) if tool else ()
    observed = () if observation is None else (Observation(kind="environment", text=observation),)
    return Turn(action=Action(text=action, calls=calls), observations=observed, actor=actor)


def run(name, *trajectories, **options):
    chosen = Filter([name], **options)
    return list(
        chosen([Trajectory(turns=turns) if isinstance(turns, tuple) else turns for turns in trajectories])
    ), chosen.taken


def actions(trajectory):
    return [turn.action.text for turn in trajectory.turns]


def test_the_registry_is_closed():
    assert set(NAMES) == {*TURN_FILTERS, *TRAJECTORY_FILTERS, "invalid_actions", "environment_failures", "duplicates"}
    assert Filter().names == list(NAMES)
    assert Filter(without=["duplicates"]).names == [name for name in NAMES if name != "duplicates"]


def test_word2world_leaves_nothing_out():
    odd = [Trajectory(turns=turns) for turns in ((turn("", "x"),), (turn("", "x"),), (turn("a", "sandbox died"),))]
    assert list(Filter(without=METHODS["word2world"])(odd)) == odd
    with pytest.raises(UserError, match="there are no filters for 'word2word'; did you mean 'word2world'"):
        left_out("word2word")


def test_too_short_empty_and_double():
    left, taken = run("too_short", (turn("a", "1"),), (turn("a", "1"), turn("b")), (turn("a", "1"), turn("b", "2")))
    assert [actions(trajectory) for trajectory in left] == [["a", "b"]]
    assert taken == {"too_short": 2}
    (kept,), taken = run("empty_actions", (turn("a", "1"), turn("  ", "2"), turn("", "3", tool="look")))
    assert (actions(kept), taken) == (["a", ""], {"empty_actions": 1})
    left, taken = run("duplicates", (turn("a", "1"),), (turn("a", "1"),), (turn("a", "2"),))
    assert (len(left), taken) == (2, {"duplicates": 1})
    calls = [Action(calls=(Call(name="look", id=identity),)) for identity in ("call_1", "call_2")]
    left, taken = run("duplicates", *[(Turn(action=action),) for action in calls])
    assert (len(left), taken) == (1, {"duplicates": 1})


def test_undeclared_tools():
    declared = Context(action_space=({"type": "function", "function": {"name": "look"}}, {"name": "move"}))
    made = [
        Trajectory(turns=(turn("", "1", tool=tool, actor=actor),), context=context)
        for tool, context, actor in (
            ("look", declared, "agent"),
            ("move", declared, "agent"),
            ("fly", declared, "agent"),
            ("fly", Context(), "agent"),
            ("fly", declared, "user"),
        )
    ]
    left, taken = run("undeclared_tools", *made)
    assert left == [made[0], made[1], made[3], made[4]]
    assert taken == {"undeclared_tools": 1}


GARBAGE = "Error: invalid JSON in the arguments: Expecting value: line 1 column 9"


def called(tool, arguments, text, **more):
    action = Action(calls=(Call(name=tool, arguments=arguments),))
    return Turn(action=action, observations=(Observation(kind="tool", text=text, tool=tool, call=0, **more),))


def left_of(*turns):
    (left,), _ = run("retries", turns)
    return [turn.observations[0].text for turn in left.turns]


@pytest.mark.parametrize(
    "garbage",
    [
        called("search", '{"query": ', GARBAGE),
        called("search", {"q": "x"}, "Input validation error for search: 'query' is a required property"),
        called("search", {"q": "x"}, "MCP error -32602: Invalid arguments for tool search"),
        called("serch", {"query": "x"}, "Error: unknown tool 'serch'"),  # the corrected call has another name
        called("search", '{"query": ', "failed", error=True),
        turn("let me see", "Your output was not formatted correctly: no tool call found."),
        called("search", {}, "Error executing tool: missing 1 required positional argument: 'query'"),
    ],
)
def test_a_retry_cycle_leaves_what_came_out_of_it(garbage):
    """Garbage, error, and the corrected call; also where the garbage was repeated first."""
    corrected = called("search", {"query": "x"}, "3 results")
    assert left_of(turn("a", "1"), garbage, corrected) == ["1", "3 results"]
    assert left_of(garbage, garbage, corrected) == ["3 results"]
    assert left_of(corrected, garbage) == ["3 results", garbage.observations[0].text]  # it was not tried again


def test_what_a_working_environment_says_is_no_retry_cycle():
    refused, missing = "curl: (7) Failed to connect: Connection refused", "cat: a: No such file or directory"
    traceback = "Traceback (most recent call last):\nTypeError: f() missing 1 required positional argument: 'a'"
    for text in (refused, missing, traceback, "Error: busy", "You wait."):
        again = called("bash", {"command": "curl b"}, "ok")
        assert left_of(called("bash", {"command": "curl a"}, text), again) == [text, "ok"]
        assert left_of(called("bash", {"command": "curl b"}, text), again) == [text, "ok"]
    other = called("list_files", {}, "a b")
    assert left_of(called("search", '{"query": ', GARBAGE), other) == [GARBAGE, "a b"]  # given up, and learnt


def test_what_had_an_effect_is_kept_with_a_garbage_call_beside_it():
    both = called("write", {"path": "a"}, "written")
    mixed = Turn(
        action=Action(calls=(*both.action.calls, Call(name="search", arguments="{"))),
        observations=(*both.observations, Observation(kind="tool", text=GARBAGE, tool="search", call=1)),
    )
    assert left_of(mixed, called("search", {"query": "x"}, "3")) == ["written", "3"]


def test_of_an_action_that_fails_again_in_the_same_words_the_last_stays():
    polls = [turn("curl a", "Connection error") for _ in range(5)]
    assert left_of(*polls, turn("curl a", "ok")) == ["Connection error", "ok"]
    assert left_of(turn("wait", "You wait."), turn("wait", "You wait.")) == ["You wait.", "You wait."]
    flagged = called("f", {}, "5", error=True)
    assert left_of(flagged, flagged) == ["5"]
    assert left_of(flagged, flagged.model_copy(update={"actor": "user"})) == ["5", "5"]


def test_turns_that_change_nothing():
    (left,), taken = run(
        "no_change", (turn("a", "page 1"), turn("b", "page 1"), turn("c"), turn("d", "page 1"), turn("e", "page 2"))
    )
    assert actions(left) == ["a", "c", "e"]
    assert taken == {"no_change": 2}
    start = Trajectory(turns=(turn("a", "page 0"), turn("b", "page 1")), context=Context(initial_state="page 0"))
    (left,), _ = run("no_change", start)
    assert actions(left) == ["b"]
    (left,), _ = run("no_change", (turn("a", ""), turn("b", "page 1")))  # no initial state is none that is empty
    assert actions(left) == ["a", "b"]


@pytest.mark.parametrize("text", ["Nothing happens.", "Unknown action: fly", " nothing happens", "NO!"])
def test_invalid_actions(text):
    (left,), taken = run("invalid_actions", (turn("a", "fine"), turn("b", text), turn("c")), invalid=["^no!$"])
    assert actions(left) == ["a", "c"]
    assert taken == {"invalid_actions": 1}


SCREEN = [
    "Please complete the CAPTCHA to go on",
    "verify you are human",
    "HTTP 502",
    "502 Bad Gateway",
    "404 page not found",
    "net::ERR_CONNECTION_REFUSED",
    "screenshot could not be captured",
    "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/state_3.json'",
    "  ",
]


def of_domain(domain, *turns):
    return Trajectory(turns=turns, metadata={"domain": domain} if domain else {})


@pytest.mark.parametrize("text", SCREEN)
@pytest.mark.parametrize("domain", DOMAINS)
def test_environment_failures_are_of_screens(domain, text):
    chosen = Filter()
    left = list(chosen([of_domain(domain, turn("a", "1"), turn("b", text))]))
    assert (left == []) is (domain in ("android", "web", "os"))
    assert chosen.taken["environment_failures"] == (left == [])


def test_what_stands_at_the_foot_of_a_form_is_no_challenge():
    made = of_domain("web", turn("a", "Log in\nThis site is protected by reCAPTCHA"), turn("b", "Welcome"))
    assert list(Filter()([made])) == [made]


@pytest.mark.parametrize("domain", [*DOMAINS, None])
def test_a_refused_connection_is_what_a_terminal_shows(domain):
    text = "curl: (7) Failed to connect to localhost port 80: Connection refused"
    made = of_domain(domain, turn("curl a", text), turn("ls", "b"))
    assert list(Filter()([made])) == [made]


def test_patterns_of_ones_own_are_for_every_domain():
    for domain in ("terminal", "web", None):
        left, taken = run(
            "environment_failures", of_domain(domain, turn("a", "the elevator is stuck")), failures=["elevator"]
        )
        assert (left, taken) == ([], {"environment_failures": 1})


def test_the_filters_of_some_domains_leave_the_others_alone():
    tools = Context(action_space=({"name": "look"},))
    for domain in (*DOMAINS, None):
        made = of_domain(domain, turn("", "1", tool="fly"), turn("", "1", tool="look")).model_copy(
            update={"context": tools}
        )
        chosen = Filter()
        left = list(chosen([made]))
        assert (chosen.taken["undeclared_tools"] == 1) is (domain in ("mcp", "swe"))
        assert (chosen.taken["no_change"] == 1) is (domain in ("android", "web", "os"))
        assert chosen.without_domain == (domain is None)
        if domain in ("search", "terminal", None):
            assert left == [made]


def test_a_domain_comes_from_the_argument_the_row_or_its_format():
    undeclared = of_domain("terminal", turn("", "1", tool="fly")).model_copy(
        update={"context": Context(action_space=({"name": "look"},))}
    )
    names = ["undeclared_tools"]
    assert list(Filter(names)([undeclared])) == [undeclared]
    assert list(Filter(names, domain="mcp")([undeclared])) == []
    swe = undeclared.model_copy(update={"metadata": {}, "source": Source(format="sweagent", file="f", row=0)})
    assert list(Filter(names)([swe])) == []
    airline = undeclared.model_copy(
        update={"metadata": {"domain": "airline"}}
    )  # of another benchmark: none of the seven
    assert list(Filter(names)([airline])) == []  # because it was asked for
    assert list(Filter(["no_change", "duplicates"])([airline])) == [airline]
    with pytest.raises(UserError, match="there is no domain 'shell'"):
        Filter(domain="shell")


def test_filters_of_turns_come_first_so_that_what_is_left_is_judged():
    chosen = Filter(["too_short", "empty_actions"])
    assert list(chosen([Trajectory(turns=(turn("a", "1"), turn("", "2")))])) == []
    assert chosen.taken == {"empty_actions": 1, "too_short": 1}


def test_mistakes():
    with pytest.raises(UserError, match="there is no filter 'duplicate'; did you mean 'duplicates'"):
        Filter(["duplicate"])
    for pattern in ("(", "a{4294967296}", "(" * 5000):
        with pytest.raises(UserError, match="is no regular expression") as error:
            Filter(failures=[pattern])
        assert len(str(error.value)) < 500


def counted(text, invalid=None, actions=1):
    data = {} if invalid is None else {"actions": actions, "invalid": invalid}
    return Turn(
        action=Action(calls=(Call(name="act"),)),
        observations=(Observation(kind="environment", text=text, tool="act", call=0, data=data),),
    )


def test_what_the_world_counted_wins_over_what_the_text_looks_like():
    turns = (
        counted("You see a lamp.", invalid=0),
        counted("Nothing happens.", invalid=0),  # the answer to a valid command, its world says
        counted("That's not a verb I recognise.", invalid=1),
        counted("No calls are left.", invalid=1),
        counted("Nothing happens.\nThe episode is over."),
        counted("A door."),
    )
    (left,), taken = run("invalid_actions", turns)
    assert left.turns == (turns[0], turns[1], turns[5])
    assert taken == {"invalid_actions": 3}
    (left,), taken = run("invalid_actions", turns, invalid=["^you see"])  # the user's own pattern is asked always
    assert left.turns == (turns[1], turns[5])


@pytest.mark.parametrize(
    "turn_in_part", [counted("Invalid: 1 of 2\n..A>"), counted("..A>", invalid=1, actions=2)], ids=["text", "counts"]
)
def test_of_a_turn_that_took_effect_in_part_the_effect_stays_and_nothing_is_predicted(turn_in_part):
    from wm_plugin.data.transitions import expand

    turns = (counted(".A.>", invalid=0), turn_in_part, counted("Invalid: 2 of 2\n..A>"), counted("..!", invalid=0))
    (left,), taken = run("invalid_actions", turns)
    assert taken == {"invalid_actions": 2}
    assert [turn.observations[0].text for turn in left.turns] == [turns[n].observations[0].text for n in (0, 1, 3)]
    transitions = list(expand([left]))
    assert [transition.observation.text for transition in transitions] == [".A.>", "..!"]
    assert [len(transition.history) for transition in transitions] == [0, 2]


@pytest.mark.parametrize("data", [{"invalid": "all"}, {"invalid": True, "actions": 1}, {"invalid": [1], "actions": {}}])
def test_counts_that_are_none_leave_it_to_the_text(data):
    observation = Observation(kind="tool", text="Nothing happens.", data=data)
    (left,), _ = run("invalid_actions", (counted("a"), Turn(action=Action(text="x"), observations=(observation,))))
    assert len(left.turns) == 1


def test_an_episode_that_was_lost_with_its_world_is_an_environments_failure():
    lost = [Trajectory(turns=(turn("a", "x"),), metadata={"figures": {"lost": value}}) for value in (0.0, 1.0)]
    odd = [Trajectory(turns=(turn("a", "x"),), metadata={"figures": value}) for value in (None, [1], {"lost": "1"})]
    left, taken = run("environment_failures", *lost, *odd)
    assert left == [lost[0], *odd]
    assert taken == {"environment_failures": 1}


@pytest.mark.parametrize("patterns", [["(?i)X"], ["(?x) x  # one"], ["(?P<a>x)", "(?P<a>y)"], [r"(a)\1", "x"]])
def test_each_pattern_of_a_user_means_what_it_says(patterns):
    chosen = Filter(["environment_failures"], failures=patterns)
    texts = [Trajectory(turns=(turn("a", text),)) for text in ("x", "aA b", "b")]
    left = [trajectory.turns[0].observations[0].text for trajectory in chosen(texts)]
    assert left == (["b"] if patterns[0] == r"(a)\1" else ["aA b", "b"])
