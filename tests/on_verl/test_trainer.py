"""The trainer's side: columns of a batch, what is lost, what is counted, what survives."""

import re
from collections import Counter
from types import SimpleNamespace

import pytest

pytest.importorskip("verl")

import datasets
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl.trainer.ppo.v1 import replay_buffer, trainer_base
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.dataset.rl_dataset import RLHFDataset

from support import templates
from support.bare_on_verl import bare
from support.on_verl import running
from support.queue_on_verl import Store
from wm_plugin.errors import UserError
from wm_plugin.hosting.annealing import TurnBudget
from wm_plugin.objectives import EchoConfig, Span
from wm_plugin.objectives.empty_batches import Tally
from wm_plugin.objectives.metrics import LEARNT, LEARNT_LENGTH
from wm_plugin.tokens.spans import OTHER, SPAN_FIELD, Origin
from wm_plugin.verl import trainer as trainer_module
from wm_plugin.verl.names import AGENT_NAME, COUNTS, ERROR, MESSAGES, ORIGINS, RESULTS, TOOL_IDS, TOOLS, WEIGHTS
from wm_plugin.verl.trainer import (
    Row,
    WorldModelColocateAsyncTrainer,
    WorldModelTrainer,
    _learn_tool_names,
    make_columns,
)

SPANS = [
    [(Span(1, 3, "tool", "a", True), 0.5), (Span(3, 4, "tool", "a", False), 0.0), (Span(5, 6, "tool", "b", True), 1.0)],
    [],  # padding, or nothing of the environment's
    [(Span(0, 1, "tool", "c", True), 1.0), (Span(1, 2, "user", None, True), 1.0)],  # a tool without figures of its own
]


def make_row(mask, extra=None, *, ids=None, uid="p", reward=0.0, padding=False):
    ids = list(mask) if ids is None else ids
    return Row(uid, ids, torch.tensor(mask), reward, extra or {}, padding)


ROWS = [make_row([1, 0, 0, 0, 1, 0]), make_row([1]), make_row([0, 0, 1])]


def test_columns_by_hand():
    columns = make_columns(running(EchoConfig(), ["a", "b"]), SPANS, ROWS)
    weights, tool_ids = (columns[name].unbind() for name in (WEIGHTS, TOOL_IDS))
    assert [row.tolist() for row in weights] == [[0, 0.5, 0.5, 0, 0, 1], [0], [1, 1, 0]]
    assert [row.tolist() for row in tool_ids] == [[0, 1, 1, 0, 0, 2], [0], [OTHER, 0, 0]]
    assert columns[COUNTS].tolist() == [[3], [0], [2]]
    assert weights[0].element_size() + tool_ids[0].element_size() == 6  # bytes a token


def test_counts_of_every_environment_token():
    """Those that a user's spans leave out too, and none of a padding row."""
    one = running(EchoConfig(normalization="observation_tokens"))
    assert make_columns(one, SPANS, ROWS)[COUNTS].tolist() == [[4], [0], [2]]
    assert make_columns(one, [[], [], []], ROWS)[COUNTS].tolist() == [[4], [0], [2]]
    padding = [row._replace(padding=True) for row in ROWS]
    assert make_columns(one, [[], [], []], padding)[COUNTS].tolist() == [[0], [0], [0]]


weighed_spans = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.sampled_from([0.0, 0.5, 1.0])), max_size=5)


@settings(max_examples=50, deadline=None)
@given(st.lists(weighed_spans, min_size=1, max_size=4))
def test_a_rows_count_is_that_of_its_weights(drawn):
    spans, rows = [], []
    for row in drawn:
        position, weighed = 0, []
        for gap, length, weight in row:
            weighed.append((Span(position + gap, position + gap + length, "tool", "a", True), weight))
            position += gap + length
        spans.append(weighed)
        rows.append(make_row([0] * position + [1]))
    columns = make_columns(running(EchoConfig(), ["a"]), spans, rows)
    assert [len(row) for row in columns[WEIGHTS].unbind()] == [len(row.ids) for row in rows]
    for row, count, weighed in zip(columns[WEIGHTS].unbind(), columns[COUNTS], spans, strict=True):
        assert torch.count_nonzero(row) == count == sum(span.end - span.start for span, weight in weighed if weight)


def trainer(echo=None, *, limit=100, **attributes):
    ref = {"actor": {"ppo_mini_batch_size": 2}, "rollout": {"n": 2, "multi_turn": {"max_tool_response_length": 256}}}
    config = {"actor_rollout_ref": ref, "data": {"max_response_length": limit}}
    return bare(echo, config=config, **{"_wm_expected": 8, **attributes})


def lost(sessions, echo=None, *, keys=None, **wm):
    """What is logged where so many of 8 trajectories came back."""
    keys, metrics = keys or [f"{prompt}_{session}_0" for prompt in "abcd" for session in range(2)][:sessions], {}
    trainer(echo, wm=wm)._count_lost(SimpleNamespace(keys=keys), metrics)
    return metrics


@pytest.mark.parametrize(("sessions", "share"), [(8, 0.0), (6, 0.25), (4, 0.5)])
def test_lost_trajectories_are_counted(sessions, share, caplog):
    assert lost(sessions) == {"wm/lost": share}
    several = ["a_0_0", "a_0_1", *(f"{one}_0" for one in ("a_1", "b_0", "b_1", "c_0", "c_1", "d_0", "d_1"))]
    assert lost(8, keys=several) == {"wm/lost": 0.0}  # several outputs of one trajectory are one
    assert ("trajectories failed in the agent loop" in caplog.text) == (share > 0)


@pytest.mark.parametrize(("sessions", "max_lost"), [(3, 0.5), (7, 0.0), (0, 1.0)])
def test_too_many_lost_stop_the_run(sessions, max_lost):
    with pytest.raises(RuntimeError, match=f"{8 - sessions} of 8 trajectories failed in the agent loop.*wm.max_lost"):
        lost(sessions, keys=[] if sessions == 0 else None, max_lost=max_lost)


@pytest.mark.parametrize("environment", [None, "grid"])
def test_at_coefficient_0_only_our_environments_stop_it(environment, caplog):
    if environment is None:
        lost(4, EchoConfig(0.0), max_lost=0.1)
        assert "trajectories failed in the agent loop" in caplog.text
    else:
        with pytest.raises(RuntimeError, match="4 of 8 trajectories failed"):
            lost(4, EchoConfig(0.0), max_lost=0.1, environment=environment)


def test_the_workers_count_must_be_the_trainers():
    trainer()._check_counts(30.0, 60, 8)  # 8 rows in updates of 4
    for counted in (60.0, 29.0):
        with pytest.raises(
            RuntimeError, match=f"the workers saw {counted} environment tokens an update, the trainer wrote 30.0"
        ):
            trainer()._check_counts(counted, 60, 8)
    with pytest.raises(RuntimeError, match="reported nothing of the world-model term"):
        trainer()._check_counts(None, 60, 8)


END, PAD = 7, 8
TOKENIZER = SimpleNamespace(eos_token_id=END, pad_token_id=PAD, name_or_path="/nowhere", decode=str)


def weighted(extra, mask, echo=None, *, padding=False, ids=None, **attributes):
    ours = trainer(echo, **{"tokenizer": TOKENIZER, **attributes})
    ((_, (spans,)),) = ours._weighted_spans([make_row(mask, extra, ids=ids, padding=padding)])
    return spans


def test_spans_of_our_loop_and_of_others():
    origin = Origin(Span(1, 2, "tool", "a", True))
    assert weighted({ORIGINS: [origin.pack()]}, [1, 0]) == [(origin.span, 1.0)]
    assert weighted({ORIGINS: [origin._replace(failed=True).pack()]}, [1, 0]) == [(origin.span, 0.0)]
    env_spans = {SPAN_FIELD: [(1, 2, "user", None, True), (2, 3, "user", None, False)]}
    assert [weight for _, weight in weighted(env_spans, [1, 0, 0])] == [1.0, 0.0]
    assert weighted({}, [1, 1]) == []
    assert weighted({ERROR: "ignored"}, [0, 0], padding=True) == []


@pytest.mark.parametrize(
    ("mask", "ids", "limit", "counts"),
    [
        ([1, 0, 1], [1, 2, END], 100, True),
        ([1, 0, 1], [1, 2, 3], 100, False),  # the policy was cut while it spoke
        ([1, 0, 0], [1, 2, 3], 100, True),  # the environment had the last word
        ([1, 0, 0], [1, 2, 3], 3, False),  # and there was no room for more
    ],
)
def test_truncated_completions_of_a_users_own_loop_can_be_left_out(mask, ids, limit, counts):
    env_spans = {SPAN_FIELD: [(1, 2, "tool", "a", True)]}
    ((_, weight),) = weighted(env_spans, mask, EchoConfig(1.0, include_truncated=False), ids=ids, limit=limit)
    assert weight == counts
    ((_, weight),) = weighted(env_spans, mask, ids=ids, limit=limit)
    assert weight == 1.0


def test_groups_without_reward_variance_can_be_dropped():
    origin = Origin(Span(0, 1, "tool", "a", True)).pack()
    rows = [
        make_row([0, 1], {ORIGINS: [origin]}, uid=uid, reward=reward, padding=padding)
        for uid, reward, padding in (("p", 1, False), ("p", 1, False), ("q", 0, False), ("q", 1, False), ("p", 5, True))
    ]
    for drop, weights in (("drop", [0, 0, 1, 1]), ("refill", [0, 0, 1, 1]), ("keep", [1, 1, 1, 1])):
        ((_, spans),) = trainer(EchoConfig(1.0, zero_variance_groups=drop))._weighted_spans(rows)
        assert [0 if row is None else row[0][1] for row in spans[:4]] == weights
        assert not spans[4]


def test_whole_completions_are_chosen_by_their_messages_and_reward():
    origin = Origin(Span(0, 1, "tool", "a", True)).pack()
    asked = [{"role": "assistant", "content": "a"}]
    rows = [
        make_row([0, 1], {ORIGINS: [origin], MESSAGES: messages}, uid=str(place), reward=reward)
        for place, (messages, reward) in enumerate(((asked, 0), (asked, 1), ([], 0)))
    ]
    echo = EchoConfig(1.0, select_rollout=lambda messages, reward: messages == asked and reward == 0)
    one = running(echo, ["a"])
    ((_, spans),) = trainer(echo)._weighted_spans(rows)
    assert spans == [[(Span(0, 1, "tool", "a", True), 1.0)], None, None]
    for normalization, counts in (("selected_tokens", [1, 0, 0]), ("per_trajectory", [1, 0, 0])):
        one = running(echo.replace(normalization=normalization), ["a"])
        assert make_columns(one, spans, rows)[COUNTS].flatten().tolist() == counts
    bare = make_row([0, 1], {ORIGINS: [origin]})
    with pytest.raises(
        UserError, match=r"an agent loop gave none: it must be ours, or .* extra_fields\['wm_messages'\]"
    ):
        list(trainer(echo)._weighted_spans([bare]))
    ((_, held_out),) = trainer(echo)._weighted_spans(rows, held_out=True)
    assert all(own is not None for own in held_out)


class Rewards(Store):
    """`outcome` says of each prompt the rewards of its trajectories."""

    def add(self, count):
        for uid in range(self.added, self.added + count):
            self.items[f"u{uid}"] = {"is_prompt": True, "status": "finished", "global_steps": 1}
            self.items |= {
                f"u{uid}_{session}_0": {"reward": reward} for session, reward in enumerate(self.outcome(uid))
            }
        self.added += count

    def kv_batch_get(self, keys, partition_id, select_fields):
        return {"rm_scores": [torch.tensor([0.0, self.items[key]["reward"]]) for key in keys]}


def refilled(monkeypatch, rewards, echo, prompts=4):
    """A step of verl's own sampling with our trainer's refills: its metrics, the groups of its batch, and what it sampled."""
    store = Rewards(rewards)
    monkeypatch.setattr(replay_buffer, "tq", store)
    ours = bare(echo, config={"data": {"train_batch_size": prompts}, "actor_rollout_ref": {"rollout": {"n": 2}}})
    ours._next_train_batch = lambda count: count
    ours._submit_batch_to_rollout = store.add
    ours.replay_buffer = replay_buffer.ReplayBuffer(
        "sync",
        trainer_config=None,
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs=None,
        poll_interval=0.0,
        refill_fn=ours._add_prompts_to_generate,
        filter_groups_metric="reward",
        train_batch_size=prompts,
        gen_batch_size=1,
    )
    store.add(prompts)
    rows = []

    def step(_, metrics, *arguments):
        batch, more = ours.replay_buffer.sample(1, "train", prompts)
        metrics.update(more)
        for uid, session, _ in (key.split("_") for key in batch.keys):
            rows.append(make_row([1], uid=uid, reward=rewards(int(uid[1:]))[int(session)]))
        ours._record_unfilled(rows, metrics)

    monkeypatch.setattr(PPOTrainerSync, "_step_once", step)
    metrics = {}
    ours._step_once(metrics, {}, prompts)
    assert ours.replay_buffer.filter_groups_metric == "reward"  # again, for the next step
    return metrics, {row.uid for row in rows}, store


REFILL = EchoConfig(1.0, zero_variance_groups="refill", max_refills=3)


def test_verl_refills_until_every_group_has_an_advantage(monkeypatch):
    metrics, groups, store = refilled(monkeypatch, lambda uid: [0.1, 0.1] if uid % 3 else [0.0, 0.3], REFILL)
    assert len(groups) == 4
    assert all(int(uid[1:]) % 3 == 0 for uid in groups)
    assert metrics["echo/refill/unfilled"] == 0
    assert metrics["echo/refill/prompts"] == store.added - 4 > 0
    assert metrics["echo/refill/without_advantage"] == sum(bool(uid % 3) for uid in range(store.added))


def test_the_bound_ends_verls_refills(monkeypatch, caplog):
    """verl itself would sample for ever."""
    metrics, groups, store = refilled(monkeypatch, lambda uid: [1.0, 1.0], REFILL)
    assert len(groups) == 4 == metrics["echo/refill/unfilled"]
    assert 3 * 4 <= metrics["echo/refill/prompts"] == store.added - 4 < 5 * 4
    assert 4 * 4 <= metrics["echo/refill/without_advantage"] <= store.added  # surplus is not classified
    assert "the rewards of 4 of 4 groups are all equal; they stay" in caplog.text


UNUSABLE = {
    "an error of the loop": ({ERROR: "cannot tell"}, [1, 0], "cannot tell"),
    "another agent loop": (
        {},
        [1, 0, 1],
        "write actor_rollout_ref.rollout.agent.default_agent_loop=wm_tool_agent; or put",
    ),
    "spans on sampled tokens": ({SPAN_FIELD: [(0, 1, "tool", "a", True)]}, [1, 0], "that the policy sampled"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_spans_that_cannot_be_told_stop_the_run_unless_the_coefficient_is_0(case, caplog):
    fields, mask, message = UNUSABLE[case]
    with pytest.raises(UserError, match=re.escape(message)):
        weighted(fields, mask)
    assert weighted(fields, mask, EchoConfig(0.0)) == []
    assert "are not measured (wm.coeff is 0)" in caplog.text


def test_a_datasets_column_of_agent_loops_is_named_where_there_is_one():
    dataset = SimpleNamespace(dataframe=SimpleNamespace(column_names=["prompt", AGENT_NAME]))
    with pytest.raises(UserError, match="drop the dataset's column agent_name, which wins over default_agent_loop"):
        weighted({}, [1, 0, 1], train_dataset=dataset)


def test_names_are_learned_and_keep_their_numbers():
    for tools, known in ((None, ["b", "a", "c"]), (["b"], ["b"])):
        one = running(EchoConfig(1.0, tools=tools), ["b"])
        _learn_tool_names(one, ROWS, SPANS)
        assert one.tools == known


def test_names_that_a_policy_invents_are_not_learned():
    """Our loop says which tools there are; another's spans are all that is known, and are bounded."""
    one = running(EchoConfig(1.0))
    declared = make_row([0, 0], {TOOLS: ["look", "move"], ORIGINS: []})
    for step in range(50):
        invented = [[(Span(n, n + 1, "tool", f"made up {step} {n}", True), 1.0) for n in range(2)]]
        _learn_tool_names(one, [declared], invented)
    assert one.tools == ["look", "move"]
    for step in range(200):
        row, name = make_row([0], {SPAN_FIELD: []}), f"{step}" + "x" * (step % 2) * 100
        _learn_tool_names(one, [row], [[(Span(0, 1, "tool", name, True), 1.0)]])
    assert one.tools[:2] == ["look", "move"]
    assert len(one.tools) == LEARNT
    assert max(map(len, one.tools)) < LEARNT_LENGTH


def test_what_became_of_the_tokens_of_a_step_is_counted():
    origins = [Origin(Span(1, 3, "tool", "a", True)), Origin(Span(3, 4, "tool", "a", False))]
    extra = {ORIGINS: [origin.pack() for origin in origins]}
    ours = trainer(EchoConfig(1.0, roles=["user"]))
    rows = [make_row([1, 0, 0, 0], extra), make_row([1, 0, 0, 0], extra, padding=True)]
    ((one, _),) = ours._weighted_spans(rows)
    assert list(one.tallies) == [Tally(environment=3, left_out=Counter({("roles", "tool"): 3}))]
    rows = [make_row([1, 1], {ORIGINS: [], RESULTS: [2, 0]}), make_row([1, 0, 0, 0], {**extra, RESULTS: [1, 0]})]
    ((one, _),) = ours._weighted_spans(rows)
    assert [tally.unanswered for tally in one.tallies] == [2]


def episodes(*turns):
    return [{"success": 1.0, "turns": float(count)} for count in turns]


def test_a_turn_budget_takes_the_episodes_of_a_step():
    ours, found = trainer(_wm_turn_budget=TurnBudget(5, 2)), []
    for turns in ((5, 1), (2, 4), (), (1,)):
        metrics = {}
        ours._record_episodes(episodes(*turns), metrics)
        found.append(metrics["wm/turn_budget"])
        assert ("wm/env/turns" in metrics) == bool(turns)
    assert found == [5.0, 5.0, 4.0, 4.0]  # (3 + 5)/2, and then the budget of the step that it is the figure of
    assert ours._wm_turn_budget.turns == 1
    metrics = {}
    trainer()._record_episodes(episodes(3), metrics)
    assert "wm/turn_budget" not in metrics
    assert metrics["wm/env/turns"] == 3


def restarted(tmp_path, monkeypatch, saved, budget):
    """A trainer with `budget` that has loaded what one with `saved` wrote down."""
    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", lambda self: None)
    monkeypatch.setattr(PPOTrainerSync, "_load_checkpoint", lambda self: None)
    config = {"trainer": {"default_local_dir": str(tmp_path), "resume_mode": "auto"}}
    old, new = (
        bare(wm={"environment": "grid", "turn_budget": of}, config=config, global_steps=3) for of in (saved, budget)
    )
    old._save_checkpoint()
    new._load_checkpoint()
    return new


def test_a_turn_budget_survives_in_the_middle_of_a_window(tmp_path, monkeypatch, caplog):
    budget = TurnBudget(6, 2)
    for turns in ((6, 1), (3, 2), (4, 5)):
        budget.end_iteration(turns)
    new = restarted(tmp_path, monkeypatch, budget, TurnBudget(6, 2))
    assert new._wm_turn_budget == budget
    assert new._wm_turn_budget.state_dict().items() >= {"turns": 5, "iterations": 1, "episodes": 2}.items()
    assert "is not the checkpoint's" not in caplog.text


def test_a_damaged_state_is_left_for_that_of_an_earlier_checkpoint(tmp_path, monkeypatch, caplog):
    budget = TurnBudget(6, 2)
    restarted(tmp_path, monkeypatch, budget, TurnBudget(6, 2))
    (tmp_path / "global_step_3" / "actor").mkdir()
    (tmp_path / "global_step_3" / "data.pt").touch()
    (tmp_path / "global_step_7").mkdir()
    (tmp_path / "global_step_7" / "wm_state.json").write_text("{")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7")
    new = restarted(tmp_path, monkeypatch, budget, TurnBudget(6, 2))
    assert (new.config.trainer.resume_mode, new._wm_turn_budget) == ("resume_path", budget)
    assert f"resuming from {tmp_path}/global_step_3" in caplog.text


@pytest.mark.parametrize("saved", [None, TurnBudget(6, 3)])
def test_a_turn_budget_of_other_settings_starts_anew(tmp_path, monkeypatch, caplog, saved):
    new = restarted(tmp_path, monkeypatch, saved, TurnBudget(6, 2))
    assert new._wm_turn_budget == TurnBudget(6, 2)
    assert "the checkpoint's wm.turn_budget has other settings: it starts at 6" in caplog.text


@pytest.mark.parametrize("kind", [WorldModelTrainer, WorldModelColocateAsyncTrainer])
@pytest.mark.parametrize("status", ["finished", "running"])
@pytest.mark.parametrize("coeff", [0.05, 0.0])
def test_rollouts_that_a_run_without_the_term_left_behind(tmp_path, monkeypatch, caplog, coeff, status, kind):
    """An asynchronous mode's checkpoint keeps them; those that had not ended are made anew, by our loop."""
    rows = {"u0": {"is_prompt": True, "status": status}, "u0_0_0": {}, "u0_1_0": {"wm_origins": []}}
    rows["u1"] = {"is_prompt": True, "status": "pending"}

    def get(keys, partition_id, select_fields):
        return {"extra_fields": [rows[key] for key in keys]}

    monkeypatch.setattr(trainer_module, "tq", SimpleNamespace(kv_list=lambda name: {name: rows}, kv_batch_get=get))
    monkeypatch.setattr(trainer_base.PPOTrainer, "_load_checkpoint", lambda self: None)
    config = {"trainer": {"default_local_dir": str(tmp_path), "resume_mode": "auto"}}
    ours = bare(EchoConfig(coeff), kind, config=config, global_steps=3)
    if kind is not WorldModelTrainer and coeff and status == "finished":
        with pytest.raises(UserError, match="1 rollouts that it keeps .*global_step_3/transfer_queue away") as error:
            ours._load_checkpoint()
        assert "\n" not in str(error.value)
        return
    ours._load_checkpoint()
    assert "the checkpoint is of a run without wm: the schedule goes on from step 3" in caplog.text


# -- rows that no world can begin with ------------------------------------------------------------------------------------------


def rows_of(*extras):
    """verl's dataset of rows with these columns; a file has all columns in each."""
    made = object.__new__(RLHFDataset)  # making one reads files
    made.dataframe = datasets.Dataset.from_list([{"prompt": "", "extra_info": extra} for extra in extras])
    return made


def begin(monkeypatch, environment, train, val):
    def load(self):
        self.train_dataset, self.val_dataset = train, val

    monkeypatch.setattr(trainer_base.PPOTrainer, "_init_dataloader", load)
    bare(wm={"environment": environment})._init_dataloader()


WORLDS = {"maze": "maze", "forth": "forth"}
GOOD = [{"environment": "maze", "board": "A.G", "problem": None}, {"environment": "forth", "problem": "dup"}]
BAD = {
    "null in a row before the last": [
        {"environment": "maze", "board": None},
        {"environment": "maze", "board": "A.G"},
    ],
    "null in a later row": [*GOOD, {"environment": "forth", "board": "A.G"}],
    "no world of that name": [*GOOD, {"environment": "mazes", "board": "A.G"}],
    "no columns": [*GOOD, None],
}


def test_rows_of_several_worlds_begin(monkeypatch):
    begin(monkeypatch, WORLDS, rows_of(*GOOD), rows_of(*reversed(GOOD)))
    begin(monkeypatch, WORLDS, rows_of(*GOOD), rows_of())


@pytest.mark.parametrize("which", ["train", "val"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("null in a row before the last", "row 0 of data.{}_files: .* MazeEnvironment.reset: .*'board'"),
        ("null in a later row", "row 2 of data.{}_files: .* ForthEnvironment.reset: .*'problem'.*columns: 'board'"),
        ("no world of that name", "row 2 of data.{}_files: .*`environment` is 'mazes', and environment has"),
        ("no columns", "row 2 of data.{}_files: .*`environment` is None"),
    ],
)
def test_a_row_that_its_world_cannot_begin_with_stops_the_run_before_it_starts(monkeypatch, kind, message, which):
    both = {"train": rows_of(*GOOD), "val": rows_of(*GOOD), which: rows_of(*BAD[kind])}
    with pytest.raises(UserError, match="^extra_info in " + message.format(which)) as error:
        begin(monkeypatch, WORLDS, **both)
    assert "\n" not in str(error.value)


def test_rows_of_one_world(monkeypatch):
    maze, forth = [{"extra_info": {"board": "A.G"}}], [{"extra_info": {"problem": "dup"}}]
    begin(monkeypatch, "maze", maze, maze)
    begin(monkeypatch, None, forth, forth)
    with pytest.raises(UserError, match="row 0 of data.val_files: .*'board'"):
        begin(monkeypatch, "maze", maze, forth)


def test_files_without_columns_for_worlds(monkeypatch):
    bare = rows_of({"board": "A.G"})
    bare.dataframe = bare.dataframe.remove_columns("extra_info")
    with pytest.raises(UserError, match="row 0 of data.train_files: a row's column `environment` is None"):
        begin(monkeypatch, WORLDS, bare, bare)


def test_a_run_whose_results_are_cut_says_so_once(caplog):
    ours, metrics = trainer(), {}
    ours._record_cuts([], metrics)
    ours._record_cuts([[0, 0]], metrics)
    assert metrics == {}
    ours._record_cuts([[3, 0], [1, 0]], metrics)
    assert metrics == {"wm/results_cut": 0.0}
    assert not caplog.text
    for _ in range(2):
        ours._record_cuts([[3, 1], [0, 0], [5, 1]], metrics)
    assert metrics == {"wm/results_cut": 0.25}
    (record,) = caplog.records
    assert record.getMessage().startswith("2 of the 8 tool results of a step (25%) were longer than 256 characters")
    assert "multi_turn.max_tool_response_length" in record.getMessage()


@pytest.mark.parametrize("calls", [1, 4])
def test_a_template_of_one_call_a_turn_is_refused_where_several_are_run(calls, monkeypatch):
    def init(trainer):
        trainer.tokenizer, trainer.processor = templates.make_tokenizer("llama3_1"), None

    monkeypatch.setattr(PPOTrainerSync, "_init_tokenizer", init)
    monkeypatch.setattr(trainer_module, "_model_type", lambda config: "llama")
    rollout = {"multi_turn": {"max_parallel_calls": calls}}
    trainer = bare(config={"data": {}, "actor_rollout_ref": {"rollout": rollout}})
    if calls == 1:
        trainer._init_tokenizer()
    else:
        with pytest.raises(UserError, match="verl refuses the chat template .* single tool-calls at once"):
            trainer._init_tokenizer()
