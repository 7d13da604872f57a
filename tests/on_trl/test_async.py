"""The term inside TRL's asynchronous trainer: real trainer, real rollout loop, against plain transformers sample by sample."""

import inspect
import pickle
import random
import threading
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
import trl
from transformers import AutoModelForCausalLM

asynchronous = pytest.importorskip("trl.experimental.async_grpo")
pytest.importorskip("trl", minversion="1.16")

from trl.experimental.async_grpo import async_grpo_trainer, async_rollout_worker, weight_transfer  # noqa: E402

from support.async_on_trl import (  # noqa: E402
    LocalPolicy,
    LocalWorker,
    NoTransfer,
    Script,
    config,
    loop_of,
    naive_term,
    on_a_cpu,
    run,
    tokenizer_of_tools,
    worker,
)
from support.on_trl import Gradients, ToolEnvironment, call, dataset, make_model, make_tokenizer, reward  # noqa: E402
from support.perfect import perfect, settings  # noqa: E402
from support.serving import Handler, serving  # noqa: E402
from support.upstream import taken_from_host  # noqa: E402
from wm_plugin import EchoConfig  # noqa: E402
from wm_plugin.errors import UserError  # noqa: E402
from wm_plugin.hosting.episode import EpisodePort  # noqa: E402
from wm_plugin.hosting.hooks import Hook  # noqa: E402
from wm_plugin.hosting.tags import in_tags  # noqa: E402
from wm_plugin.lab.tiny import policy  # noqa: E402
from wm_plugin.objectives import Objectives  # noqa: E402
from wm_plugin.tokens.spans import Ending, Origin  # noqa: E402
from wm_plugin.trl import WorldModelAsyncGRPOConfig, WorldModelAsyncGRPOTrainer, async_support, support, train  # noqa: E402
from wm_plugin.trl.async_rollout import WorldModelRolloutLoop, WorldModelRolloutMixin  # noqa: E402
from wm_plugin.trl.term import TermMixin  # noqa: E402
from wm_plugin.worlds.grid import GridEnvironment, dataset_rows  # noqa: E402
from wm_plugin.worlds.wrappers.simulated import simulated  # noqa: E402

COEFF = 0.37
Stock, Ours = asynchronous.AsyncGRPOTrainer, WorldModelAsyncGRPOTrainer


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    on_a_cpu(monkeypatch)


# -- the term ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "echo",
    [
        EchoConfig(1.0, {"run_code": 0.3, "lookup_doc": 0.07}),
        EchoConfig(COEFF, normalization="per_trajectory"),
        pytest.param(EchoConfig(COEFF), marks=pytest.mark.slow),
    ],
)
def test_the_gradient_is_the_hosts_and_the_terms(echo, tmp_path):
    _, before, stock_samples = run(Stock, tmp_path)
    trainer, after, samples = run(Ours, tmp_path, world_model=echo)
    assert len(before) == len(after) == 2
    for step in range(2):
        own = samples[8 * step : 8 * step + 8]  # two micro-batches of four
        for one, other in zip(own, stock_samples[8 * step :], strict=False):
            assert one.input_ids.tolist() == other.input_ids.tolist()
        mean = echo.normalization == "per_trajectory"
        expected, tokens = naive_term(own, trainer.processing_class, tools=echo.tools, per_trajectory=mean)
        assert tokens > 30
        row = trainer.state.log_history[step]
        assert row["echo/tokens"] == tokens
        assert row["echo/tool/run_code/tokens"] + row["echo/tool/lookup_doc/tokens"] == tokens
        difference = after[step].double() - before[step].double()
        assert (difference - echo.coeff * expected).norm() <= 1e-5 * (echo.coeff * expected).norm()  # float32
    assert trainer.state.log_history[0]["wm/env/calls/run_code"] > 0
    assert trainer.state.log_history[0]["wm/env/calls/unknown"] > 0


class Same:
    """Conversations that differ in their last answer alone."""

    def __init__(self, tokenizer):
        self.tokenizer, self.number = tokenizer, 0

    def __call__(self, prompt_ids):
        depth = self.tokenizer.decode(prompt_ids).count("<tool_response>")
        self.number += 1
        answers = [call("run_code", code="1"), call("lookup_doc", name="x"), f"done {self.number}"]
        ids = self.tokenizer(answers[depth] + "<|im_end|>").input_ids
        return ids, [-2.0] * len(ids)


class Watched(Ours):
    def _wm_columns(self, batch, rows):
        self.taken = [*getattr(self, "taken", []), [SimpleNamespace(**s) for row in rows for s in row.samples]]
        return super()._wm_columns(batch, rows)


@pytest.mark.slow
def test_tokens_that_samples_share_count_once_for_each(tmp_path):
    """They are computed once, in a row that the host fills up to its budget of tokens."""
    fields = {"token_budget": 700, "gradient_accumulation_steps": 1, "max_steps": 1}
    rollouts = {"turn": Same(tokenizer_of_tools()), "ready": 36}
    _, (before,), _ = run(Stock, tmp_path, args=config(**fields), rollouts=rollouts)
    rollouts["turn"].number = 0
    trainer, (after,), _ = run(
        Watched, tmp_path, args=config(**fields), rollouts=rollouts, world_model=EchoConfig(COEFF)
    )
    expected, tokens = naive_term(trainer.taken[0], trainer.processing_class)
    row = trainer.state.log_history[0]
    assert row["batch/packing_ratio"] > 1.5
    assert row["echo/tokens"] == tokens
    difference = after.double() - before.double()
    assert (difference - COEFF * expected).norm() <= 1e-5 * (COEFF * expected).norm()


def flat(completions, **_):
    return [1.0] * len(completions)


def test_groups_without_reward_variance_are_kept_or_dropped(tmp_path, caplog):
    rollouts = {"reward_funcs": [flat], "ready": 20}
    args = config(max_steps=1)
    trainer, (gradient,), samples = run(Ours, tmp_path, args=args, rollouts=rollouts, world_model=EchoConfig(COEFF))
    assert trainer.state.log_history[0]["echo/policy_silent"] == 1.0
    assert "all advantages of an optimizer step were 0" in caplog.text
    expected, _ = naive_term(samples[:8], trainer.processing_class)
    assert (gradient.double() - COEFF * expected).norm() <= 1e-5 * gradient.norm()  # nothing but the term
    echo = EchoConfig(COEFF, zero_variance_groups="drop")
    trainer, (gradient,), _ = run(Ours, tmp_path, args=args, rollouts=rollouts, world_model=echo)
    assert trainer.state.log_history[0]["echo/tokens"] == 0
    assert not gradient.any()
    assert "zero_variance_groups drop leaves out" in caplog.text


def trained(cls, folder, **kwargs):
    args = config(learning_rate=1e-2, gradient_accumulation_steps=1)
    trainer, gradients, _ = run(cls, folder, args=args, rollouts={"ready": 16}, **kwargs)
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    parameters = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    return trainer, losses, gradients, parameters, torch.get_rng_state()


def test_coefficient_0_is_bit_identical_to_the_host(tmp_path):
    _, losses, gradients, parameters, generator = trained(Stock, tmp_path)
    ours = trained(Ours, tmp_path, world_model=EchoConfig(0.0))
    assert ours[1] == losses
    assert len(losses) == 2
    assert all(torch.equal(a, b) for a, b in zip(ours[2], gradients, strict=True))
    assert torch.equal(ours[3], parameters)
    assert torch.equal(ours[4], generator)
    assert ours[0].state.log_history[0]["echo/nll"] > 0  # measured all the same


# -- rollouts: facts --------------------------------------------------------------------------------------------------------


class Awaited(ToolEnvironment):
    """A tool that is a coroutine function."""

    async def run_code(self, code: str) -> str:
        return super().run_code(code)

    run_code.__doc__ = ToolEnvironment.run_code.__doc__


@pytest.mark.parametrize(
    ("fork_threshold_tokens", "environment"),
    [
        (0, ToolEnvironment),
        (1024, Awaited),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((0, Awaited), (1024, ToolEnvironment))),
    ],
)
def test_every_result_is_in_one_row_whatever_the_template_writes_anew(fork_threshold_tokens, environment):
    tokenizer = tokenizer_of_tools()
    local = worker(
        tokenizer,
        ours=True,
        ready=40,
        environment=environment,
        reward_funcs=[flat],
        fork_threshold_tokens=fork_threshold_tokens,
    )
    local.start()
    rows = defaultdict(list)
    for sample in local.samples:
        rows[id(sample.completion)].append(sample)
    rewritten = "fork" if fork_threshold_tokens == 0 else "realign"
    assert any(figures.get(f"rollout/{rewritten}_frac", (0,))[0] for figures in local.metrics_queue.queue)
    assert (len(rows) < len(local.samples)) == (fork_threshold_tokens == 0)  # some conversations have several rows
    endings = set()
    for samples in rows.values():
        results = [message for message in samples[0].completion if message["role"] == "tool"]
        found = []
        for sample in samples:
            facts = pickle.loads(pickle.dumps(sample.metrics)).facts  # as it comes out of a process's queue
            assert facts.problem is None
            assert facts.without_variance
            origins = [Origin.unpack(values) for values in facts.origins]
            endings |= {origin.ending for origin in origins}
            for origin in origins:
                assert not sample.completion_mask[origin.span.start : origin.span.end].any()
                made_up = origin.message["content"].startswith("{'error'")
                assert origin.failed == made_up
            contents = [origin for origin in origins if origin.span.content]
            found += [tokenizer.decode(sample.input_ids[o.span.start : o.span.end]) for o in contents]
        assert found == [message["content"] for message in results]
    assert endings == {Ending.COMPLETE, Ending.TRUNCATED}


def test_a_turn_that_was_not_noted_stops_the_run(tmp_path, caplog):
    class Late(WorldModelRolloutLoop):
        async def _generate_one_turn(self, prompt_ids):  # in front of ours, which it does not call
            ids = self.tokenizer("done<|im_end|>").input_ids
            return ids, [-1.0] * len(ids)

    tokenizer = tokenizer_of_tools()
    make_model(tokenizer).save_pretrained(tmp_path)
    for coeff in (0.5, 0.0):
        settings = {"dataset": dataset(), "reward_funcs": [reward], "processing_class": tokenizer}
        local = LocalWorker(Late, 20, **settings, eos_token_ids=[1], num_generations=4)
        trainer = make(tmp_path, tokenizer, EchoConfig(coeff), rollout_worker=local, environment_factory=None)
        if coeff:
            with pytest.raises(UserError, match="put WorldModelRolloutMixin before the class that overrides it"):
                trainer.train()
        else:
            trainer.train()
            assert "not measured (coeff is 0): a conversation of 1 turns took 0" in caplog.text


def test_conversations_that_went_past_ours_say_so():
    """To the trainer, which can stop in a line; the process of the rollouts goes on."""
    tokenizer = tokenizer_of_tools()

    class Past(loop_of(Script(tokenizer), ours=True)):
        async def _generate_one(self, prompt, tool_dict, tools, group_id=0):
            ids, logps = await self._generate_one_turn(self.tokenizer("hi").input_ids)
            row = async_rollout_worker.TrainingSequence(ids, [1] * len(ids), logps, "")
            return [{"role": "assistant", "content": "hi"}], ids, [row], 0, 0, None

    settings = {"dataset": dataset(), "reward_funcs": [flat], "processing_class": tokenizer}
    local = LocalWorker(Past, 4, **settings, eos_token_ids=[1], num_generations=4)
    local.start()
    assert len(local.samples) >= 4
    assert all("put it before the class that overrides that" in one.metrics.facts.problem for one in local.samples)


def test_figures_of_episodes_are_means_whatever_a_tool_is_called():
    class Till:
        success, turns = True, 2

        def __init__(self, actions):
            self.metrics = {"actions": actions, "effective": 1, "max_depth": actions}

        def reset(self): ...

        def add_total(self): ...

    pushed = []
    loop = SimpleNamespace(max_tool_calling_iterations=3, _push_metrics=pushed.append)
    for actions in (0, 2, 4):
        completion = [{"role": "assistant", "content": ""}]
        names = ["add_total"] * actions
        parts = EpisodePort(Till(actions)), names, (completion, [1]), Ending.COMPLETE, []
        WorldModelRolloutMixin._wm_log_episode(loop, *parts)
    values = defaultdict(list)
    for figures in pushed:
        for name, value in figures.items():
            values[name].append(value)
    logged = {name: async_grpo_trainer._reduce_metric(name, window) for name, window in values.items()}
    assert logged["wm/env/calls/add_total"] == logged["wm/env/max_depth"] == 2
    assert logged["wm/env/effective_share"] == 2 / 6  # of the two with actions
    assert logged["wm/env/success"] == 1


def test_a_worker_without_facts_stops_the_run(tmp_path):
    tokenizer = tokenizer_of_tools()
    make_model(tokenizer).save_pretrained(tmp_path)
    trainer = make(tmp_path, tokenizer, rollout_worker=worker(tokenizer, ours=False, ready=20))
    with pytest.raises(
        UserError, match="a sample has no facts about the environment's tokens: .*WorldModelRolloutLoop"
    ):
        trainer.train()


# -- with a policy that generates -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_rollouts_by_transformers_while_it_trains(tmp_path):
    """The loop goes on while the policy trains, by a copy that the host's own synchronisation brings up to date."""
    tokenizer = policy.make_tokenizer()
    policy.make_model(tokenizer, seed=0).save_pretrained(tmp_path)
    copy = LocalPolicy(AutoModelForCausalLM.from_pretrained(tmp_path), tokenizer(policy.ACTIONS).input_ids)
    local = LocalWorker(
        loop_of(copy, ours=True),
        dataset=rows_of_grid(),
        reward_funcs=[flat],
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        environment_factory=GridEnvironment,
        num_generations=4,
        max_tool_calling_iterations=4,
    )
    args = config(max_steps=4, learning_rate=1e-2, per_device_train_batch_size=8)
    given = {"environment_factory": GridEnvironment, "rollout_worker": local, "weight_transfer": copy}
    trainer = make(tmp_path, tokenizer, EchoConfig(1.0), cls=Watched, args=args, rows=rows_of_grid(), **given)
    trainer.train()
    figures = [row for row in trainer.state.log_history if "echo/nll" in row]
    assert len(figures) == 4
    assert figures[-1]["echo/nll"] < 0.8 * figures[0]["echo/nll"]  # it learns the world, with no reward
    for step, row in enumerate(figures):
        samples = [sample for batch in trainer.taken[2 * step : 2 * step + 2] for sample in batch]
        origins = [Origin.unpack(values) for sample in samples for values in sample.metrics.facts.origins]
        spans = [origin.span for origin in origins if origin.span.content and not origin.failed]
        assert row["echo/tokens"] == sum(span.end - span.start for span in spans) > 0
    assert copy.synced >= 4
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(parameter, copy.model.get_parameter(name))


def rows_of_grid():
    from datasets import Dataset

    return Dataset.from_list(dataset_rows(64))


class Moves:
    """Moves on a board, two of them at once, a wrong one, a call of no tool, and the end."""

    def __init__(self, tokenizer):
        self.tokenizer, self.draws = tokenizer, random.Random(0)

    def __call__(self, prompt_ids):
        draw = self.draws.randrange(12)
        calls = [call("move", direction="UDLRX"[min(draw, 4)])]
        if draw == 10:
            calls = [call("move", direction="R"), call("fly", to="G"), call("move", direction="D")]
        ids = self.tokenizer(("I stop." if draw == 11 else "\n".join(calls)) + "<|im_end|>").input_ids
        return ids, [-2.0] * len(ids)


def test_rollouts_in_a_perfect_world_model_are_those_of_the_real_world():
    from accelerate import PartialState
    from datasets import Dataset

    PartialState()  # the trainer makes it, and the host's loop logs by it
    rows, found = dataset_rows(6, seed=2), []
    tokenizer = make_tokenizer([GridEnvironment().move])
    with perfect("grid", rows) as server:
        for kind in (GridEnvironment, simulated(GridEnvironment, settings(server, cache=False))):
            dataset_of_rows = Dataset.from_list(rows)
            made = worker(
                tokenizer,
                ours=True,
                ready=20,
                turn=Moves(tokenizer),
                environment=kind,
                train_dataset=dataset_of_rows,
                reward_funcs=[flat],
            )
            made.start()
            found.append(made)
        assert len(server.bodies) > 20
    real, played = (
        [
            (one.input_ids.tolist(), one.completion_mask.tolist(), one.metrics.facts, one.metrics["reward"])
            for one in made.samples[:20]
        ]
        for made in found
    )
    assert played == real
    assert all(facts.origins and facts.problem is None for _, _, facts, _ in real if facts.calls)
    texts = "".join(tokenizer.decode(ids) for ids, *_ in played)
    assert "Invalid: " in texts
    assert "unknown tool fly" in texts
    logged = [{name: value for one in list(made.metrics_queue.queue) for name, value in one.items()} for made in found]
    assert "wm/env/simulation/requests" in logged[1]
    assert "wm/env/simulation/requests" not in logged[0]


def answers(turn):
    """A handler that answers the request of a turn as vLLM does."""
    lock = threading.Lock()

    class Turns(Handler):
        def do_POST(self):
            body = self.body()
            with lock:
                ids, logps = turn(body["prompt"])
            self.reply({"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": logps}}]})

    return Turns


@pytest.mark.nightly
def test_the_hosts_own_worker_in_its_process(tmp_path, monkeypatch):
    """TRL's default worker, in the process that it starts, asks a server for turns."""
    monkeypatch.setattr(async_rollout_worker, "is_vllm_available", lambda *_: True)  # only the server needs it
    tokenizer = tokenizer_of_tools()
    make_model(tokenizer).save_pretrained(tmp_path)
    gradients = Gradients()
    with serving(answers(Script(tokenizer))) as url:
        trainer = make(
            tmp_path,
            tokenizer,
            EchoConfig(COEFF),
            cls=Watched,
            reward_funcs=[flat],
            args=config(max_steps=1, max_inflight_tasks=4, vllm_server_base_url=url.removesuffix("/v1")),
            callbacks=[gradients],
        )
        trainer.train()
    samples = [sample for batch in trainer.taken[:2] for sample in batch]
    expected, tokens = naive_term(samples, tokenizer)
    assert trainer.state.log_history[0]["echo/tokens"] == tokens > 30
    assert (gradients.steps[0].double() - COEFF * expected).norm() <= 1e-5 * gradients.steps[0].norm()


# -- what it relies on, and what it refuses ---------------------------------------------------------------------------------


def make(folder, tokenizer, echo=None, *, cls=Ours, args=None, rows=None, **kwargs):
    return cls(
        model=str(folder),
        args=args or config(max_steps=1),
        train_dataset=rows or dataset(),
        **{
            "weight_transfer": NoTransfer(),
            "processing_class": tokenizer,
            "environment_factory": ToolEnvironment,
            "world_model": EchoConfig(0.5) if echo is None else echo,
            **kwargs,
        },
    )


@pytest.fixture
def made(tmp_path):
    """Makes trainers whose worker makes no rollouts."""
    tokenizer = tokenizer_of_tools()
    make_model(tokenizer).save_pretrained(tmp_path)
    idle = worker(tokenizer, ours=True)

    def make_one(echo=None, **kwargs):
        return make(tmp_path, tokenizer, echo, **{"rollout_worker": idle, **kwargs})

    return make_one


def test_the_list_of_hooks_is_closed():
    """What the adapter overrides, calls and reads is listed."""
    names = {hook.path for hook in async_support.HOOKS}
    loop = async_rollout_worker._AsyncRolloutLoop
    for ours, host in ((TermMixin, Stock), (Ours, Stock), (WorldModelRolloutMixin, loop)):
        assert {f"{host.__name__}.{name}" for name in taken_from_host(ours, host)} <= names
    assert async_support.problem() is None


PINNED = {
    "AsyncGRPOTrainer.compute_loss": "(self, model, inputs, return_outputs=False, num_items_in_batch=None)",
    "_AsyncRolloutLoop._generate_one": "(self, prompt: ",
    "_AsyncRolloutLoop._generate_one_turn": "(self, prompt_ids: ",
    "_AsyncRolloutLoop._score_group": "(self, group: ",
}


@pytest.mark.parametrize("path", PINNED)
def test_hook_has_the_signature_that_we_override(path):
    owner, _, name = path.partition(".")
    signature = str(inspect.signature(getattr({"AsyncGRPOTrainer": Stock}.get(owner) or loop_class(), name)))
    assert signature.startswith(PINNED[path]), f"trl {trl.__version__}: {path}{signature} has moved"


def loop_class():
    return async_rollout_worker._AsyncRolloutLoop


def test_a_moved_hook_is_named_and_leaves_coefficient_0_to_the_host(made, monkeypatch, caplog):
    hooks = (*async_support.HOOKS, Hook("trl", "GRPOTrainer._no_such_hook"))
    monkeypatch.setattr(async_support, "HOOKS", hooks)
    with pytest.raises(UserError, match="trl.GRPOTrainer._no_such_hook is gone; install another version"):
        made()
    made(EchoConfig(0.0))
    assert "environment tokens are not measured (coeff is 0): trl" in caplog.text


def test_what_is_not_exact_is_refused(made, monkeypatch):
    trainer = made(EchoConfig(0.0))

    def refused(echo, message, tools=("run_code",), worker=None, **fields):
        with monkeypatch.context() as patch:
            for name, value in fields.items():
                patch.setattr(trainer.args, name, value)
            with pytest.raises(UserError, match=message) as error:
                async_support.check(trainer, Objectives({"": echo}), set(tools), worker)
        assert "\n" not in str(error.value)

    refused(EchoConfig(0.5), "temperature is 0.7.*write temperature: 1.0", temperature=0.7)
    refused(EchoConfig(0.5, select_rollout=lambda *_: True), "select_rollout reads a completion's messages")
    refused(EchoConfig(0.5, guard=True), "guard watches evaluations, and AsyncGRPOTrainer has none; leave it out")
    refused(EchoConfig(0.5, zero_variance_groups="refill"), "come from a queue; write zero_variance_groups: drop")
    refused(EchoConfig(0.5, ["run_cod"]), "there is no tool 'run_cod'; did you mean 'run_code'")
    refused(EchoConfig(0.5), "no environment tokens can occur", tools=())
    theirs = Objectives({"": EchoConfig(0.5, ["theirs"])})
    async_support.check(trainer, theirs, set(), object())  # a worker whose tools are not known
    on_gpu = SimpleNamespace(device=torch.device("cuda"), state=SimpleNamespace(), parallelism_config=None)
    monkeypatch.setattr(trainer, "accelerator", on_gpu)
    refused(EchoConfig(0.0), "on cuda AsyncGRPOTrainer computes the log-probabilities of the tokens alone")


def test_refused_at_construction(made, tmp_path):
    for kwargs, message in (
        ({"environment_factory": in_tags(GridEnvironment)}, "takes actions by tags, which the rollouts of Async"),
        ({"echo": EchoConfig(0.5, ["zzz"])}, "there is no tool 'zzz'"),
        (
            {"args": config(cls=WorldModelAsyncGRPOConfig, echo_coeff=0.1)},
            "world_model=EchoConfig.* and echo_coeff are the same thing",
        ),
    ):
        with pytest.raises(UserError, match=message):
            made(**kwargs)
    hiding = tokenizer_of_tools()
    hiding.chat_template = hiding.chat_template.replace("message.content", "'fixed'")
    with pytest.raises(UserError, match="tokenizer .* on trl: ") as error:
        made(processing_class=hiding)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="turn_budget changes while the policy trains"):
        config(cls=WorldModelAsyncGRPOConfig, turn_budget={"start": 3, "every": 1})
    with pytest.raises(UserError, match="max_lost counts the episodes of a step"):
        config(cls=WorldModelAsyncGRPOConfig, max_lost=0.1)
    with pytest.raises(UserError, match="echo_coeff is -1"):
        config(cls=WorldModelAsyncGRPOConfig, echo_coeff=-1)


def test_fields_of_the_config_are_the_same_thing(made):
    trainer = made(world_model=None, args=config(cls=WorldModelAsyncGRPOConfig, echo_coeff=0.25, echo_tools="run_code"))
    assert trainer._wm == {"": EchoConfig(0.25, ["run_code"])}


CONFIG = """
trainer: async_grpo
model_name_or_path: {model}
output_dir: {folder}
use_cpu: true
bf16: false
environment: grid
train_rows: wm_plugin.worlds.grid:dataset_rows
train_rows_kwargs: {{count: 4}}
max_steps: 1
dtype: float32
report_to: none
echo_coeff: 0.25
"""


def test_wm_train_makes_it(tmp_path, monkeypatch):
    for module in (async_rollout_worker, weight_transfer):  # only what is started needs it
        monkeypatch.setattr(module, "is_vllm_available", lambda *_, **__: True)
    monkeypatch.setattr(support, "has_gpu", lambda: True)
    tokenizer, path = policy.make_tokenizer(), tmp_path / "run.yaml"
    tokenizer.save_pretrained(tmp_path)
    policy.make_model(tokenizer, seed=0).save_pretrained(tmp_path)
    path.write_text(CONFIG.format(model=tmp_path, folder=tmp_path / "out"))
    trainer, resume = train.build(["--config", str(path), "--max_staleness", "7"])
    assert type(trainer) is Ours
    assert resume is None
    assert (trainer._wm, trainer.args.max_staleness) == ({"": EchoConfig(0.25)}, 7)
    assert trainer._wm_running[0].tools == ["move"]
    assert trainer.rollout_worker._loop_cls is WorldModelRolloutLoop
    assert async_rollout_worker.AsyncRolloutWorker._loop_cls is loop_class()  # of nobody else


def test_what_wm_train_refuses_of_it(tmp_path, monkeypatch):
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG.format(model=tmp_path, folder=tmp_path / "out"))

    def refused(*flags):
        with pytest.raises(UserError) as error:
            train.build(["--config", str(path), *flags])
        return str(error.value)

    assert refused("--trainer", "ppo") == "trainer is 'ppo'; write grpo or async_grpo or sft"
    monkeypatch.setattr(support, "has_gpu", lambda: False)
    assert "there is no GPU, which its attention needs" in refused()
    monkeypatch.setattr(support, "has_gpu", lambda: True)
    for flag in (["--eval_strategy=steps", "--eval_steps=1"], ["--rollout_func=json:loads"]):
        name = flag[0][2:].partition("=")[0]
        assert refused(*flag) == f"{name} is not of trainer: async_grpo; leave it out, or write trainer: grpo"
    assert "turn_budget changes while the policy trains" in refused("--turn_budget", '{"start": 3, "every": 1}')
    assert "--loss_type is not a flag" in refused("--loss_type", "dapo")  # of the other trainer's config


def test_the_hosts_worker_gets_our_loop_and_another_ones_is_refused(made):
    class TheirLoop(loop_class()):
        pass

    class Both(WorldModelRolloutMixin, TheirLoop):
        pass

    for loop, expected in ((loop_class(), WorldModelRolloutLoop), (Both, Both)):
        idle = worker(tokenizer_of_tools(), ours=True)
        idle._loop_cls = loop
        made(rollout_worker=idle)
        assert idle._loop_cls is expected
    idle._loop_cls = TheirLoop
    with pytest.raises(
        UserError, match="LocalWorker runs TheirLoop, which records nothing about the environment's tokens"
    ):
        made(rollout_worker=idle)
    made(EchoConfig(0.0), rollout_worker=idle)
    assert pickle.loads(pickle.dumps(WorldModelRolloutLoop)) is WorldModelRolloutLoop  # the process is told its name
