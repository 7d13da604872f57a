"""What every kind of samples makes of rollouts of the grid, for either host."""

import json

import pytest

from support.built import rows
from wm_plugin.data import Trajectory, Turn, expand, read
from wm_plugin.data.building import build
from wm_plugin.data.kinds import KINDS, Exclusions, samples
from wm_plugin.data.schema import Action, Call, Context, Observation, Source
from wm_plugin.data.write import write, write_transitions
from wm_plugin.errors import UserError
from wm_plugin.lab.tiny.rollouts import rollouts
from wm_plugin.objectives.information import category

pytestmark = pytest.mark.host
pytest_plugins = ["support.built"]

CONTEXT = Context(task="A shell.", initial_state="~$")
DOMAIN = {"agentworld-sft": "mcp", "agentworld": "mcp", "cpt": "mcp"}


def test_the_kinds_are_closed():
    assert set(KINDS) == {"rwml-sft", "rwml", "word2world", "agentworld-sft", "agentworld", "cpt", "imitation", "rft"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_both_hosts_the_same_tokens_and_masks(grid, tokenizer, tmp_path, kind):
    tokens = []
    for host, mask in (("trl", "assistant_masks"), ("verl", "loss_mask")):
        out = tmp_path / f"{host}.parquet"
        built = build(grid, kind, host, out, prompts=DOMAIN.get(kind), tokenizer=tokenizer)
        made = rows(out)
        assert built.rows == len(made) > 0
        assert built.tokens > built.counted
        assert not built.calls_as_text
        if KINDS[kind].form == "rl":
            assert not built.counted
            assert {"prompt"} < made[0].keys()
        else:
            observed = {"env_spans", "reward"} if kind in ("imitation", "rft") else set()
            assert set(made[0]) == {"input_ids", mask} | observed
            assert sum(sum(row[mask]) for row in made) == built.counted > 0
            tokens.append([(row["input_ids"], row[mask]) for row in made])
    assert not tokens or tokens[0] == tokens[1]


def test_rwml_by_hand(grid, tmp_path):
    build(grid, "rwml", "trl", tmp_path / "rl.jsonl")
    build(grid, "rwml-sft", "trl", tmp_path / "sft.jsonl")
    first = next(iter(rollouts(1, 0)))
    board = first.turns[0].observations[0].text
    rl, sft = rows(tmp_path / "rl.jsonl")[0], rows(tmp_path / "sft.jsonl")[0]
    assert rl["target"] == board
    assert (rl["observer"], rl["tool"], rl["turn"]) == ("environment", "move", 0)
    assert [message["role"] for message in rl["prompt"]] == ["system", "user"]
    assert board not in json.dumps(rl["prompt"])
    (completion,) = sft["completion"]
    assert completion == {
        "role": "assistant",
        "content": f"<think>\n\n</think>\n\n<next_state>\n{board}\n</next_state>",
    }


def test_word2world_is_a_dialogue_of_actions_and_observations(grid, tmp_path):
    build(grid, "word2world", "trl", tmp_path / "x.jsonl")
    for row, played in zip(rows(tmp_path / "x.jsonl"), rollouts(12, 0), strict=True):
        contents = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
        texts = [turn.observations[0].text for turn in played.turns]
        assert contents == [*texts[:-1], texts[-1] + (" [SUCCESS]" if played.success else "")]


def test_agentworld_takes_one_turn_a_trajectory(grid, tmp_path):
    """The same of trajectories and of transitions, whatever the order; what is one already stays."""
    build(grid, "agentworld", "verl", tmp_path / "x.jsonl", prompts="mcp", split="test")
    made = rows(tmp_path / "x.jsonl")
    assert len(made) == len({row["extra_info"]["trajectory"] for row in made}) == 12
    assert [row["extra_info"]["index"] for row in made] == list(range(12))
    assert {(row["data_source"], row["extra_info"]["split"]) for row in made} == {("wm_agentworld", "test")}
    made = list(expand(read(grid)))
    drawn = list(expand(read(grid), turns="one", seed=5))
    for name, transitions in {"all": made, "shuffled": made[1::2] + made[::2], "one": drawn}.items():
        write_transitions(transitions, tmp_path / f"{name}.jsonl")
        build(tmp_path / f"{name}.jsonl", "agentworld", "trl", tmp_path / "x.jsonl", prompts="mcp", seed=5)
        turns = {(row["trajectory"], row["turn"]) for row in rows(tmp_path / "x.jsonl")}
        assert len(turns) == len(rows(tmp_path / "x.jsonl")) == 12 < len(made)
        if name != "shuffled":
            assert turns == {(one.trajectory, one.turn) for one in drawn}


def test_data_of_another_domain_than_the_prompts_is_refused(tmp_path):
    for name in ("web", "bench/web", " Web"):
        trajectory = judged(0, {}).model_copy(update={"metadata": {"domain": name}})
        write([trajectory], tmp_path / "t.jsonl")
        write_transitions(expand([trajectory]), tmp_path / "x.jsonl")
        for source in ("t.jsonl", "x.jsonl"):
            for kind in ("agentworld", "agentworld-sft"):
                arguments = (tmp_path / source, kind, "trl", tmp_path / "rows.jsonl")
                with pytest.raises(UserError, match="is of the domain web, and the prompts are those of terminal"):
                    build(*arguments, prompts="terminal")
                build(*arguments, prompts="web")
            assert {row.get("domain", "web") for row in rows(tmp_path / "rows.jsonl")} == {"web"}
        with pytest.raises(UserError, match="is of the domain web"):
            build(tmp_path / "t.jsonl", "cpt", "trl", tmp_path / "rows.jsonl", prompts="mcp")


def judged(number, data, context=CONTEXT):
    """Two turns of a shell; the second one's result has `data`."""
    results = [Observation(kind="tool", tool="run", text=text, call=0) for text in ("/home", "2")]
    turns = tuple(
        Turn(action=Action(calls=(Call(name="run", arguments={"cmd": command}),)), observations=(result,))
        for command, result in zip(
            ("pwd", "ls | wc -l"), (results[0], results[1].model_copy(update={"data": data})), strict=True
        )
    )
    source = Source(format="wm", file="f", row=number)
    return Trajectory(turns=turns, context=context, source=source, metadata={})


def test_agentworld_has_what_its_rewards_read(tmp_path):
    """By hand: of the last turn, with a verifier of its own, and of one without."""
    rule = {"all": [{"regex": "2"}, {"not": {"error": {}}}]}
    made = [judged(0, {"verifier": rule, "content_type": "deterministic"}), judged(1, {"verifier": '{"regex": "2"}'})]
    write_transitions([list(expand([one]))[1] for one in made], tmp_path / "t.jsonl")
    build(tmp_path / "t.jsonl", "agentworld", "trl", tmp_path / "x.jsonl", prompts="terminal")
    build(tmp_path / "t.jsonl", "agentworld", "verl", tmp_path / "x.parquet", prompts="terminal")
    first, second = rows(tmp_path / "x.jsonl")
    expected = {
        "domain": "terminal",
        "context": (
            "# Task description\nA shell.\n\n# Initial state\n~$\n\n"
            'Agent (turn 1):\nrun({"cmd": "pwd"})\n\nTool run (turn 1):\n/home'
        ),
        "action": 'run({"cmd": "ls | wc -l"})',
        "verifier": json.dumps(rule),
        "history": ["/home"],
        "content_type": "deterministic",
    }
    assert {name: first[name] for name in expected} == expected
    assert (second["verifier"], second["content_type"]) == ('{"regex": "2"}', "")
    columns = {*expected, "target", "observer", "tool", "task_id", "trajectory", "turn"}
    assert set(first) == {"prompt", *columns}
    for row, same in zip(rows(tmp_path / "x.parquet"), (first, second), strict=True):
        assert row["reward_model"]["ground_truth"] == same["target"]
        assert row["extra_info"] | {"target": same["target"]} == {
            "index": row["extra_info"]["index"],
            "split": "train",
            **{name: same[name] for name in columns},
        }


def test_a_domain_of_ones_own_prompts(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "styles: agentworld\nfields: {domain: a shell, environment: a, state: [b], observations: [c], "
        "exact: [d], plausible: [e], metadata: [f], failures: [g], example: h}\n"
    )
    write([judged(0, {}), judged(1, {"domain": "swe"})], tmp_path / "t.jsonl")
    arguments = (tmp_path / "t.jsonl", "agentworld", "trl", tmp_path / "x.jsonl")
    build(*arguments, prompts=str(tmp_path / "mine.yaml"))
    assert {row["domain"] for row in rows(tmp_path / "x.jsonl")} <= {"", "swe"}
    build(*arguments, prompts=str(tmp_path / "mine.yaml"), domain="terminal")
    assert {row["domain"] for row in rows(tmp_path / "x.jsonl")} <= {"terminal", "swe"}
    with pytest.raises(UserError, match="rwml has no option domain, which is for agentworld"):
        build(tmp_path / "t.jsonl", "rwml", "trl", tmp_path / "x.jsonl", domain="terminal")


def test_rows_without_a_history_and_with_one_share_a_parquet_file(tmp_path):
    """The first thousand rows make the schema: none of them has an earlier observation."""
    first = [next(expand([judged(number, {})])) for number in range(1000)]
    write_transitions([*first, list(expand([judged(1000, {})]))[1]], tmp_path / "t.jsonl")
    build(tmp_path / "t.jsonl", "agentworld", "verl", tmp_path / "x.parquet", prompts="terminal")
    assert [row["extra_info"]["history"] for row in rows(tmp_path / "x.parquet")] == [[]] * 1000 + [["/home"]]


def test_transitions_give_the_same_as_their_trajectories(grid, tmp_path):
    write_transitions(expand(rollouts(12, 0), history=2), tmp_path / "t.jsonl")
    build(tmp_path / "t.jsonl", "rwml", "trl", tmp_path / "a.jsonl")
    build(grid, "rwml", "trl", tmp_path / "b.jsonl", history=2)
    assert rows(tmp_path / "a.jsonl") == rows(tmp_path / "b.jsonl")


def talking(number, *turns):
    """A trajectory whose turns are pairs of action and observation."""
    made = tuple(
        Turn(action=Action(text=action), observations=(Observation(kind="environment", text=observation),))
        for action, observation in turns
    )
    return Trajectory(turns=made, task_id=str(number), source=Source(format="wm", file="f", row=number))


ECHO, NEW = ("think now about it", "think now about it"), ("look", " ".join(f"word{i}" for i in range(30)))


@pytest.fixture(scope="module")
def repeating(tmp_path_factory):
    path = tmp_path_factory.mktemp("echo") / "e.jsonl"
    write((talking(number, ECHO, NEW, ECHO) for number in range(200)), path)
    return path


def test_turn_information_masks_turns_of_a_dialogue(repeating):
    left = Exclusions()
    made = list(samples(repeating, "word2world", turn_information=True, exclusions=left))
    assert len(made) == 200  # every trajectory has a turn that always counts
    assert (left.kept["retrieval"], left.dropped["retrieval"]) == (200, 0)
    assert left.kept["echo"] + left.dropped["echo"] == 400
    assert 4 <= left.kept["echo"] <= 40  # 1 in 20
    for sample in made:
        contents = [m["content"] for m, counts in zip(sample.messages, sample.train, strict=True) if counts]
        assert NEW[1] in contents
    other = list(samples(repeating, "word2world", turn_information=True, seed=1))
    assert [sample.train for sample in other] != [sample.train for sample in made]


def test_a_draw_does_not_depend_on_what_stands_beside_it(tmp_path):
    write((talking(number, ECHO, NEW, ECHO) for number in range(200)), tmp_path / "all.jsonl")
    write((talking(number, ECHO, NEW, ECHO) for number in range(199, 99, -1)), tmp_path / "part.jsonl")
    for kind in ("word2world", "rwml-sft"):
        made = [
            {
                (s.columns["trajectory"], s.columns.get("turn"), tuple(s.train))
                for s in samples(path, kind, turn_information=True)
            }
            for path in (tmp_path / "all.jsonl", tmp_path / "part.jsonl")
        ]
        assert made[1] == {key for key in made[0] if int(key[0].rpartition("/")[2]) > 99}


def test_a_dropped_transition_stays_in_the_history_of_the_others(repeating):
    left = Exclusions()
    made = list(samples(repeating, "rwml-sft", turn_information=True, exclusions=left))
    assert left.reasons["turn information"] == left.dropped["echo"] > 300
    assert sum(sample.columns["target"] == NEW[1] for sample in made) == 200
    news = [sample for sample in made if sample.columns["target"] == NEW[1]]
    assert all(ECHO[0] in sample.messages[-2]["content"] for sample in news)


def calling(number, *results):
    """A trajectory of one call, answered, and then one of as many calls as there are results."""
    one = Turn(
        action=Action(calls=(Call(name="look", arguments={"at": "the red door"}),)),
        observations=(Observation(kind="tool", tool="look", call=0, text="look at the red door"),),
    )
    several = Turn(
        action=Action(calls=tuple(Call(name="open", arguments={"door": door}) for door, _ in results)),
        observations=tuple(
            Observation(kind="tool", tool="open", call=index, text=text) for index, (_, text) in enumerate(results)
        ),
    )
    source = Source(format="wm", file="f", row=number)
    return Trajectory(turns=(one, several, one), task_id=str(number), success=True, source=source)


def test_dialogues_and_transitions_train_on_the_same_turns(tmp_path):
    results = ("red", "open door red"), ("blue", "open door blue")
    write((calling(number, *results) for number in range(300)), tmp_path / "t.jsonl")
    dialogues, transitions = Exclusions(), Exclusions()
    made = list(samples(tmp_path / "t.jsonl", "word2world", turn_information=True, exclusions=dialogues))
    of_dialogues = {
        (sample.columns["trajectory"], turn)
        for sample in made
        for turn, counts in enumerate(sample.train[index] for index in said_by_the_world(sample))
        if counts and turn != 1
    }
    of_transitions = {
        (sample.columns["trajectory"], sample.columns["turn"])
        for sample in samples(tmp_path / "t.jsonl", "rwml-sft", turn_information=True, exclusions=transitions)
        if sample.columns["turn"] != 1
    }
    assert of_dialogues == of_transitions
    assert 10 <= len(of_transitions) <= 60
    assert made[0].messages[-1]["content"].endswith("[SUCCESS]")  # which is no word of the observation
    assert set(dialogues.kept + dialogues.dropped) == set(transitions.kept + transitions.dropped) == {"echo"}
    assert (dialogues.kept + dialogues.dropped)["echo"] == 900  # two results of one action are one message
    assert (transitions.kept + transitions.dropped)["echo"] == 1200


def said_by_the_world(sample):
    return [index for index, message in enumerate(sample.messages) if message["role"] == "assistant"]


def test_dropped_turns_have_no_loss(repeating, tokenizer, tmp_path):
    built = build(repeating, "word2world", "trl", tmp_path / "x.parquet", tokenizer=tokenizer, turn_information=True)
    plain = build(repeating, "word2world", "trl", tmp_path / "y.parquet", tokenizer=tokenizer)
    assert built.tokens == plain.tokens
    dropped = built.exclusions.dropped["echo"]
    assert plain.counted - built.counted == dropped * (len(ECHO[1]) + 1)  # and the end of the turn
    assert category(*ECHO) == "echo"
    with pytest.raises(UserError, match="a sample has assistant's messages that do not"):
        build(repeating, "word2world", "trl", tmp_path / "z.jsonl", turn_information=True)


def test_half_a_surrogate_pair_is_left_out(tmp_path):
    write([talking(0, ("a", "b \ud83d"), NEW), talking(1, NEW)], tmp_path / "s.jsonl")
    built = build(tmp_path / "s.jsonl", "word2world", "trl", tmp_path / "x.jsonl")
    assert (built.rows, dict(built.exclusions.reasons)) == (1, {"half a surrogate pair": 1})
