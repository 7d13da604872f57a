"""The term where an agent's own process makes the rollouts: TRL's harness loop, OpenEnv's capture, real processes over HTTP."""

import inspect
import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("trl", minversion="1.16")
pytest.importorskip("openenv")

from accelerate import PartialState
from openenv.core.harness import MCPHarnessAdapter, ResourceSession, ResourceSessionFactory, ToolResult, VerifyResult
from trl.experimental.async_grpo import AsyncGRPOTrainer, async_rollout_worker, openenv_harness

from support.agents_on_trl import (
    AGENT,
    ENVIRONMENT,
    PLANS,
    SCHEMAS,
    Rising,
    agent_worker,
    answer,
    contents,
    policy,
    rows,
    sessions,
    tokenizer_of_agents,
)
from support.async_on_trl import NoTransfer, config, on_a_cpu
from support.on_trl import Gradients, make_model
from support.serving import serving
from support.tools import call
from support.upstream import taken_from_host
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.hosting.hooks import Hook
from wm_plugin.tokens.spans import Ending, Origin
from wm_plugin.trl import WorldModelAsyncGRPOTrainer, async_support
from wm_plugin.trl.harness import WorldModelHarnessLoop, WorldModelHarnessMixin, _Session, _session

COEFF = 0.37
Loop = openenv_harness._HarnessRolloutLoop


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    on_a_cpu(monkeypatch)
    PartialState()


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizer_of_agents()


@pytest.fixture(scope="module")
def url():
    with serving(policy(tokenizer_of_agents())) as base:
        yield base


def origins(sample):
    return [Origin.unpack(values) for values in pickle.loads(pickle.dumps(sample.metrics)).facts.origins]


def counted(sample):
    """(first token, token behind the last, tool) of the content that counts in a sample."""
    return [(span.start, span.end, span.tool) for span, *_ in origins(sample) if span.content]


def figures(local, name):
    """Σ of a figure over a worker's rollouts, and their number."""
    pairs = [values[f"wm/agent/{name}"] for values in list(local.metrics_queue.queue) if f"wm/agent/{name}" in values]
    return sum(value for value, _ in pairs), len(pairs)


def test_every_observation_counts_in_the_row_that_trains_what_follows(url, tokenizer):
    local = agent_worker(url, tokenizer, ours=True, plans=PLANS, ready=24, num_generations=1)
    local.start()
    found = contents(local.samples, tokenizer)
    texts = Counter(text for own in found for *_, text in own)
    for sample, expected in zip(local.samples, found, strict=True):
        assert counted(sample) == [(start, end, tool) for start, end, tool, _ in expected]
        facts = sample.metrics.facts
        assert facts.problem is facts.note is None
        own = origins(sample)
        assert {origin.ending for origin in own} <= {Ending.COMPLETE}
        assert all(not sample.completion_mask[one.span.start : one.span.end].any() for one in own)
        if own:  # scaffold begins behind a turn's end
            assert not own[0].span.content
            assert tokenizer.decode(sample.input_ids[own[0].span.start - 1]) == "<|im_end|>"
        for one in own:
            assert one.message["role"] == one.span.role == ("user" if one.span.tool is None else "tool")
            assert one.message.get("name") == one.span.tool
    rollouts = {id(sample.completion): sample for sample in local.samples}
    shown = {text for one in rollouts.values() for message in one.completion for text in [str(message.get("content"))]}
    assert set(texts) >= {text for text in shown if text.startswith(("OUT[", "DOC[", "OBS["))}
    assert set(texts.values()) == {1, 2}  # twice: the results before a repeated request, in both rows
    requests, episodes = figures(local, "requests")
    assert requests > len(local.samples) > episodes >= 6  # rows have several requests, and episodes several rows
    assert figures(local, "conversations")[0] > episodes
    assert figures(local, "rewritten")[0] > 0
    assert figures(local, "unexplained")[0] == figures(local, "untrained")[0] == 0
    assert not any("rollout/correctness_mean" in values for values in local.metrics_queue.queue)


def trainer_of(cls, folder, tokenizer, local, **kwargs):
    make_model(tokenizer).save_pretrained(folder)
    return cls(
        model=str(folder),
        args=kwargs.pop("args", None) or config(max_steps=1),
        train_dataset=rows(PLANS),
        processing_class=tokenizer,
        rollout_worker=local,
        weight_transfer=NoTransfer(),
        **kwargs,
    )


def naive(samples, found, tokenizer, weight):
    """Gradient of Σ weight·NLL / N, by plain transformers on each sample alone, and N; `weight` is of a tool's name."""
    model = make_model(tokenizer, dtype=torch.float64)
    total, tokens = 0.0, 0
    for sample, own in zip(samples, found, strict=True):
        logps = torch.log_softmax(model(input_ids=torch.tensor([sample.input_ids.tolist()])).logits[0, :-1], -1)
        for start, end, tool, _ in own:
            if factor := weight(tool):
                places = torch.arange(start, end)
                total = total - factor * logps[places - 1, torch.tensor(sample.input_ids[start:end])].sum()
                tokens += end - start
    (total / tokens).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]), tokens


@pytest.mark.parametrize(
    ("steps", "plans", "echo", "weight"),
    [
        (1, PLANS, EchoConfig(COEFF), lambda tool: 1.0),
        pytest.param(
            2,
            PLANS,
            EchoConfig(1.0, {"run_code": 0.3, "lookup_doc": 0.07}, roles=["tool"]),
            lambda tool: {"run_code": 0.3, "lookup_doc": 0.07}.get(tool, 0.0),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            2,
            ("in_text", "plain"),
            EchoConfig(COEFF, roles=["user"]),
            lambda tool: float(tool is None),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_gradient_of_a_step_is_the_terms_and_n_counts_all_rows(
    url, tokenizer, tmp_path, steps, plans, echo, weight
):
    """All rewards are equal, so that the policy's loss has none. Steps take rows of several plans, several of one rollout."""
    local = agent_worker(url, tokenizer, ours=True, plans=plans, ready=10 * steps + 10)
    gradients = Gradients()
    args = config(per_device_train_batch_size=5, max_steps=steps)
    trainer = trainer_of(
        WorldModelAsyncGRPOTrainer, tmp_path, tokenizer, local, args=args, world_model=echo, callbacks=[gradients]
    )
    trainer.train()
    everything = contents(local.samples, tokenizer)
    assert len(gradients.steps) == steps
    assert trainer.state.log_history[0]["wm/agent/requests"] >= 2
    for step, gradient in enumerate(gradients.steps):
        own = slice(10 * step, 10 * step + 10)
        expected, tokens = naive(local.samples[own], everything[own], tokenizer, weight)
        row = trainer.state.log_history[step]
        assert row["echo/tokens"] == tokens > 50
        assert (gradient.double() - echo.coeff * expected).norm() <= 1e-5 * gradient.norm()


def trained(cls, ours, url, tokenizer, folder, **kwargs):
    plans = tuple(plan for plan in PLANS if plan != "parallel")  # its requests come in any order
    local = agent_worker(url, tokenizer, ours=ours, plans=plans, ready=16, reward=Rising())
    gradients = Gradients()
    args = config(learning_rate=1e-2, gradient_accumulation_steps=1)
    trainer = trainer_of(cls, folder, tokenizer, local, args=args, callbacks=[gradients], **kwargs)
    trainer.train()
    logs = [
        {k: v for k, v in row.items() if k in ("loss", "reward", "rollout/fork_frac")}
        for row in trainer.state.log_history
    ]
    parameters = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    return trainer, logs[:2], gradients.steps, parameters, torch.get_rng_state()


@pytest.mark.slow
def test_coefficient_0_is_bit_identical_to_the_host(url, tokenizer, tmp_path):
    _, logs, gradients, parameters, generator = trained(AsyncGRPOTrainer, False, url, tokenizer, tmp_path)
    ours = trained(WorldModelAsyncGRPOTrainer, True, url, tokenizer, tmp_path, world_model=EchoConfig(0.0))
    assert ours[1] == logs
    assert len(logs[0]) == 3
    assert gradients[0].any()
    assert all(torch.equal(one, other) for one, other in zip(ours[2], gradients, strict=True))
    assert torch.equal(ours[3], parameters)
    assert torch.equal(ours[4], generator)
    assert ours[0].state.log_history[0]["echo/nll"] > 0  # measured all the same


@pytest.mark.slow
def test_what_no_message_explains_is_counted_and_said(url, tokenizer, tmp_path, caplog):
    local = agent_worker(url, tokenizer, ours=True, plans=("strange",), ready=12)
    trainer = trainer_of(WorldModelAsyncGRPOTrainer, tmp_path, tokenizer, local, world_model=EchoConfig(COEFF))
    trainer.train()
    assert (
        "new tokens of 1 of an agent's 2 requests do not count as content: messages before the last answer are new"
        in caplog.text
    )
    assert trainer.state.log_history[0]["wm/agent/unexplained"] > 0
    spans = [origin.span for sample in local.samples for origin in origins(sample)]
    texts = [
        tokenizer.decode(sample.input_ids[start:end]) for sample in local.samples for start, end, _ in counted(sample)
    ]
    assert texts
    assert all(text.startswith("OBS[") for text in texts)  # what follows its words is known
    assert {(span.role, span.content) for span in spans} == {("user", True), ("user", False)}


# -- sessions ---------------------------------------------------------------------------------------------------------------


def loop_of(url, tokenizer, **settings):
    return agent_worker(url, tokenizer, ours=True, plans=("plain",), ready=0, factory=sessions(url, **settings)).loop


def prompt(plan):
    return [{"role": "user", "content": f"task 1 {plan}"}]


def test_an_agent_that_does_not_end_is_killed_and_trained_on_until_there(url, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    loop = loop_of(url, tokenizer)
    for timeout in (0.6, 6.0, 60.0):  # a busy machine's agent does little in the first
        loop._factory.timeout = timeout
        (completion, _, sequences, calls, *_, reward), metrics = loop._run_session(prompt("endless"))
        assert metrics["loop_exhausted"]
        if calls > 3:
            break
    assert (reward, calls > 3, len(completion) > 6) == (1.0, True, True)
    facts = [sequence.wm_facts for sequence in sequences]
    ends = [{Origin.unpack(values).ending for values in one.origins} for one in facts]
    assert ends[-1] == {Ending.TRUNCATED}
    assert Ending.TRUNCATED not in set().union(*ends[:-1])
    assert loop._factory.capture.registry.list_ids() == []
    assert list(tmp_path.iterdir()) == []
    command = ["pgrep", "-P", str(os.getpid()), "-f", AGENT.name]
    assert subprocess.run(command, capture_output=True, check=False).stdout == b""


def test_requests_are_limited(url, tokenizer):
    loop = loop_of(url, tokenizer, max_requests=2)
    (*_, sequences, calls, _, _), metrics = loop._run_session(prompt("plain"))
    assert metrics["turns"] == 2
    assert calls >= 2  # a turn has one or two
    assert all(sequence.wm_facts.calls == calls for sequence in sequences)


def test_an_agent_that_asks_nothing_has_no_reward_and_many_stop_the_run(url, tokenizer):
    loop = loop_of(url, tokenizer)
    (completion, ids, sequences, *_, reward), _ = loop._run_session(prompt("silent"))
    assert (completion, ids, sequences, reward) == ([], [], [], None)
    assert loop._factory.silent == 1
    loop._factory.silent = 15
    with pytest.raises(
        openenv_harness.CaptureContractError, match="asked the policy nothing in 16 .* no policy for me"
    ):
        loop._run_session(prompt("silent"))
    loop._run_session(prompt("plain"))
    assert loop._factory.silent == 0


def test_a_program_that_cannot_be_started(url, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="command is a list of the program and its arguments"):
        sessions(url, command="my-agent")(sampling={"temperature": 1.0})
    for program in ("my-agnet", "./my-agent"):
        with pytest.raises(UserError, match=f"there is no program '{program}'; write a name on the PATH"):
            sessions(url, command=[program])(sampling={"temperature": 1.0})
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o700)
    (tmp_path / "sessions").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "sessions"))
    factory = sessions(url, command=[str(broken)])(sampling={"temperature": 1.0})
    with pytest.raises(OSError, match="no/such/interpreter|broken"):
        factory.create(prompt("plain"))
    assert factory.capture.registry.list_ids() == list((tmp_path / "sessions").iterdir()) == []


def test_the_agent_has_its_own_prompt_and_tools(url):
    session = sessions(url, command=["true"])(sampling={"temperature": 1.0}).create("write a file")
    assert session.wait_for_completion() == 0
    assert session.initial_messages() == [{"role": "user", "content": "write a file"}]
    assert (session.list_tools(), session.call_tool("ls", {}).error) == (
        [],
        "the agent calls its tools by itself, ls too",
    )
    session.close()


class InProcess(ResourceSession, ResourceSessionFactory):
    """OpenEnv's other kind: TRL samples the turns, and an adapter runs the tools."""

    def create(self, task, seed=None, episode_id=None):
        self.task = task
        ENVIRONMENT.reset()
        return self

    def initial_messages(self):
        return list(self.task)

    def list_tools(self):
        functions = [schema["function"] for schema in SCHEMAS]
        return [SimpleNamespace(**(one | {"input_schema": one["parameters"]})) for one in functions]

    def call_tool(self, name, arguments):
        return ToolResult(data=getattr(ENVIRONMENT, name)(**arguments))

    def verify(self, transcript, final_state=None):
        return VerifyResult(env_reward=1.0)

    def close(self): ...


def test_an_answer_that_is_masked_whole_has_no_row_and_its_observations_are_counted(url, tokenizer):
    loop, session = loop_of(url, tokenizer), _Session()
    task, said = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    messages = [task, said, {"role": "user", "content": "OBS[1.1]"}]
    trace, turns = [], []
    for sent, mask in (([task], [1]), (messages, [0]), ([task, task], [1])):  # the second row is not trained on
        ids = tokenizer.apply_chat_template(sent, add_generation_prompt=True, return_dict=False)
        tokens = {"prompt_token_ids": ids, "completion_token_ids": [1], "loss_mask": [0] * len(ids) + mask}
        trace.append({"request": {"messages": sent}, **tokens})
        turns.append(async_rollout_worker.TurnRecord(ids, [1], [-1.0], mask))
    _session.set(session)
    assert loop._wm_reward(SimpleNamespace(trace=trace, env_reward=0.5, timed_out=False)) == 0.5
    sequences, _ = async_rollout_worker._chain_to_sequences(turns, "", 0)
    loop._wm_note(session, sequences, 0)
    assert [one.wm_facts.origins for one in sequences] == [(), ()]
    (found,) = loop._wm_figures
    assert [found[f"wm/agent/{name}"][0] for name in ("requests", "conversations", "untrained")] == [3, 2, 1]


@pytest.mark.slow
def test_an_adapters_turns_are_followed_too(tokenizer):
    """Also where TRL overwrites what the policy wrote by what the template makes of it."""

    class Sampled(WorldModelHarnessLoop):
        async def _generate_one_turn(self, prompt_ids):
            ids = tokenizer(answer(tokenizer.decode(prompt_ids))).input_ids
            return ids, [-2.0] * len(ids)

    from support.async_on_trl import LocalWorker

    for threshold in (0, 1024):
        settings = {"dataset": rows(PLANS), "reward_funcs": [], "processing_class": tokenizer}
        local = LocalWorker(
            Sampled,
            24,
            **settings,
            eos_token_ids=[tokenizer.eos_token_id],
            num_generations=2,
            harness_session_factory=InProcess,
            harness_adapter=MCPHarnessAdapter(),
            max_tool_calling_iterations=4,
            fork_threshold_tokens=threshold,
        )
        local.start()
        rollouts = {id(sample.completion): [] for sample in local.samples}
        for sample in local.samples:
            assert sample.metrics.facts.problem is sample.metrics.facts.note is None
            rollouts[id(sample.completion)] += [
                tokenizer.decode(sample.input_ids[start:end]) for start, end, _ in counted(sample)
            ]
        completions = {id(sample.completion): sample.completion for sample in local.samples}
        last = list(completions)[-1]  # of which not all rows may be there
        for key, texts in rollouts.items():
            results = [message["content"] for message in completions[key] if message["role"] == "tool"]
            shown = results[: len(texts)] if key == last else results[: -len(results) // 4 or None]
            assert texts[: len(shown)] == shown
        assert any(figures(local, "rewritten"))


@pytest.mark.nightly
def test_the_hosts_own_worker_in_its_process(url, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(async_rollout_worker, "is_vllm_available", lambda *_: True)  # only the policy's server needs it
    worker = openenv_harness.HarnessRolloutWorker(
        harness_session_factory=sessions(url),
        model_name="m",
        dataset=rows(PLANS),
        reward_funcs=[],
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        num_generations=4,
        max_inflight_tasks=4,
    )
    taken = []

    class Watched(WorldModelAsyncGRPOTrainer):
        def _wm_columns(self, batch, rows_):
            taken.extend(SimpleNamespace(**sample) for row in rows_ for sample in row.samples)
            return super()._wm_columns(batch, rows_)

    trainer = trainer_of(Watched, tmp_path, tokenizer, worker, world_model=EchoConfig(COEFF))
    assert worker._loop_cls is WorldModelHarnessLoop
    trainer.train()
    tokens = sum(end - start for sample in taken[:8] for start, end, _ in counted(sample))
    assert trainer.state.log_history[0]["echo/tokens"] == tokens > 30


@pytest.mark.nightly
def test_an_agent_from_the_package_index_as_it_is(tokenizer, tmp_path):
    """mini-swe-agent: its own prompts, LiteLLM's client, and the observations of its shell."""
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    subprocess.run([environment / "bin/pip", "install", "-q", "mini-swe-agent>=2.4,<3"], check=True)
    commands = ["echo hello > f.txt; cat f.txt", "ls nosuch", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]

    def turn(text):
        depth = text.count("<tool_response>")
        return f"THOUGHT: {depth}\n{call('bash', command=commands[depth])}<|im_end|>"

    command = [str(environment / "bin/mini"), "-y", "--exit-immediately", "-l", "0", "-m", "openai/m", "-t", "{task}"]
    settings = {"MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_CONFIGURED": "true", "HOME": str(tmp_path)}

    def reward(folder, messages):
        return float((folder / "f.txt").read_text() == "hello\n")

    with serving(policy(tokenizer_of_agents(), turn)) as url:
        loop = loop_of(url, tokenizer, command=command, env=settings, timeout=120.0, reward=reward)
        (*_, sequences, calls, _, value), _ = loop._run_session([{"role": "user", "content": "write a file"}])
    assert (value, calls) == (1.0, 3)
    found = []
    for row in sequences:
        spans = [Origin.unpack(values).span for values in row.wm_facts.origins]
        found += [(span.tool, tokenizer.decode(row.input_ids[span.start : span.end])) for span in spans if span.content]
        assert row.wm_facts.note is None
    assert [tool for tool, _ in found] == ["bash", "bash"]
    assert ["hello" in found[0][1], "nosuch" in found[1][1]] == [True, True]


# -- what it relies on, and what it refuses ---------------------------------------------------------------------------------


def test_the_list_of_hooks_is_closed():
    names = {hook.path for hook in (*async_support.HOOKS, *async_support.HARNESS_HOOKS)}
    taken = {f"_HarnessRolloutLoop.{name}" for name in taken_from_host(WorldModelHarnessMixin, Loop)}
    assert taken <= names
    async_support.require_harness()


PINNED = {
    "_run_session": "(self, prompt, group_id=0)",
    "_generate_one": "(self, prompt, tool_dict, tools, group_id=0)",
    "_sample_turn": "(self, turns: ",
}


def test_hooks_have_the_signatures_that_we_override():
    for name, start in PINNED.items():
        assert str(inspect.signature(getattr(Loop, name))).startswith(start)
    chain = str(inspect.signature(async_rollout_worker._chain_to_sequences))
    assert chain.startswith("(turns: list[")


def test_the_harness_worker_gets_our_loop_and_another_ones_is_refused(url, tokenizer, tmp_path, monkeypatch):
    class Theirs(Loop):
        pass

    class Both(WorldModelHarnessMixin, Theirs):
        pass

    idle = agent_worker(url, tokenizer, ours=False, plans=PLANS, ready=0)
    make = {"tokenizer": tokenizer, "local": idle, "world_model": EchoConfig(COEFF)}
    for loop, expected in ((Loop, WorldModelHarnessLoop), (Both, Both)):
        idle._loop_cls = loop
        trainer_of(WorldModelAsyncGRPOTrainer, tmp_path, **make)
        assert idle._loop_cls is expected
    assert pickle.loads(pickle.dumps(WorldModelHarnessLoop)) is WorldModelHarnessLoop  # the process is told its name
    idle._loop_cls = Theirs
    with pytest.raises(
        UserError, match="LocalWorker runs Theirs, .* from wm_plugin.trl.harness.WorldModelHarnessMixin"
    ):
        trainer_of(WorldModelAsyncGRPOTrainer, tmp_path, **make)
    idle._loop_cls = Loop
    monkeypatch.setattr(
        async_support, "HARNESS_HOOKS", (*async_support.HARNESS_HOOKS, Hook("trl", "GRPOTrainer._no_such_hook"))
    )
    with pytest.raises(UserError, match="HarnessRolloutWorker needs: trl.GRPOTrainer._no_such_hook is gone") as error:
        trainer_of(WorldModelAsyncGRPOTrainer, tmp_path, **make)
    assert "\n" not in str(error.value)
