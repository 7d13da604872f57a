"""Checks before irreversible actions: their arithmetic by hand, with a world model whose every word is known, behind a server."""

import asyncio
import json

import pytest
import yaml

import wm_plugin.worlds.agents.rollout as rollout
from support.openai_server import OpenAIServer
from support.timing import too_slow
from wm_plugin.cli.support import read_block
from wm_plugin.data.schema import Action, Call
from wm_plugin.errors import UserError
from wm_plugin.hosting.episode import EpisodePort, end_together
from wm_plugin.hosting.tags import in_tags
from wm_plugin.hosting.world import report
from wm_plugin.worlds.worlds import load
from wm_plugin.worlds.wrappers.control import controlled
from wm_plugin.worlds.wrappers.rewarded import rewarded
from wm_plugin.worlds.wrappers.simulated import simulated
from wm_plugin.worlds.wrappers.simulated_dialogue import PlayedTurn
from wm_plugin.worlds.wrappers.verified import verified
from wm_plugin.worlds.wrappers.verify_config import REFUSAL, VerifyConfig

pytestmark = pytest.mark.host  # schemas of tools are transformers'

CODE = 3


class Vault:
    """A vault that opens at the right number, and is locked for good at a wrong one."""

    observer = "environment"
    irreversible = ("open",)

    def __init__(self):
        self.reset()

    def reset(self, code: int = CODE, **_) -> str:
        self.code, self.dial, self.success, self.over, self.metrics = (
            code,
            0,
            False,
            False,
            {"actions": 0, "effective": 0},
        )
        return "The dial is at 0."

    def turn(self, to: int) -> str:
        """Turn the dial.

        Args:
            to: A number.
        """
        self._count()
        self.dial = to
        return f"The dial is at {to}."

    def open(self) -> str:
        """Open the vault. A wrong number locks it for good."""
        self._count()
        self.over, self.success = True, self.dial == self.code
        return "It opens." if self.success else "It is locked. The episode is over."

    def get_reward(self) -> float:
        return float(self.success)

    def _count(self):
        if self.over:
            raise ValueError("The episode is over.")
        self.metrics = {name: count + 1 for name, count in self.metrics.items()}


def opened():
    return Action(calls=(Call(name="open", arguments={}),))


def turned(to, text=""):
    return Action(text=text, calls=(Call(name="turn", arguments={"to": to}),))


def knows(body):
    """Says what the vault would: the last number that it was told of is the dial's."""
    told = "\n".join(one["content"] for one in body["messages"])
    dial = told.rpartition('turn({"to": ')[2].partition("}")[0]
    if body["messages"][-1]["content"].strip().endswith("open({})"):
        return "It opens. [SUCCESS]" if dial == str(CODE) else "It is locked. The episode is over."
    return f"The dial is at {dial}."


def never(_):
    return "It is locked. The episode is over."


def always(_):
    return "It opens. [SUCCESS]"


def made(server, world=Vault, *, model=(), **settings):
    return verified(world, {"world_model": {"url": server.base_url, "model": "world", **dict(model)}, **settings})


def play(environment, *actions, prompt=None):
    row = {"code": CODE} if prompt is None else {"code": CODE, "prompt": prompt}
    return rollout.replay(environment, row, actions)


def counts(trajectory):
    figures = trajectory.metadata["figures"]
    return {name: figures[f"verify/{name}"] for name in ("checks", "refused", "spent", "unanswered")}


def texts(trajectory):
    return [seen.text for turn in trajectory.turns for seen in turn.observations]


# what three calls of `open` at a wrong number come to: the first that goes out locks the vault
@pytest.mark.parametrize(
    ("budget", "spent", "refused", "checks", "after"),
    [(1, "execute", 1, 1, 1), (2, "execute", 2, 2, 1), (4, "execute", 3, 3, 0), (2, "refuse", 3, 2, 1), (1, "refuse", 3, 1, 2)],
)  # fmt: skip
def test_the_budget_counts_the_checks_of_an_episode(budget, spent, refused, checks, after):
    with OpenAIServer(knows) as server:
        environment = made(server, budget=budget, spent=spent)()
        for _ in range(2):  # another episode has the same budget
            played = play(environment, opened(), opened(), opened())
            assert counts(played) == {"checks": checks, "refused": refused, "spent": after, "unanswered": 0}
            seen = texts(played)
            assert seen[:refused] == [REFUSAL] * refused
            assert len(seen) == min(3, refused + 1)
            assert seen[refused:] == ["It is locked. The episode is over."] * (refused < 3)
            assert played.success is False
            assert played.metadata["figures"]["actions"] == (refused < 3)  # a refused call is no action of the world


def test_an_action_goes_out_where_success_is_predicted():
    with OpenAIServer(knows) as server:
        played = play(made(server)(), opened(), turned(CODE), opened())
    assert texts(played) == [REFUSAL, "The dial is at 3.", "It opens."]
    assert (played.success, played.reward) == (True, 1.0)
    assert counts(played) == {"checks": 2, "refused": 1, "spent": 0, "unanswered": 0}
    assert played.metadata["figures"]["verify/questions"] == 2
    marks = [seen.data.get("verify") for turn in played.turns for seen in turn.observations]
    assert marks == [{"verdict": "refused", "refused": True}, None, {"verdict": "passed", "refused": False}]
    assert played.metadata["verify"]["budget"] == 4
    assert server.base_url not in json.dumps(played.metadata["verify"])


def test_controls_stand_in_for_a_world_model():
    """Of three calls of `open` at a wrong number and one at the right one: what each control lets out."""
    actions = (opened(), opened(), turned(CODE), opened())

    def checked(control, **settings):
        played = play(verified(Vault, {"control": control, **settings})(), *actions)
        return played.success, *counts(played).values(), played.metadata["figures"]["verify/questions"]

    assert checked("refuse") == (False, 3, 3, 0, 0, 0)
    assert checked("refuse", budget=2) == (True, 2, 2, 1, 0, 0)
    assert checked("accept") == (False, 1, 0, 0, 0, 0)
    assert checked("oracle") == (True, 3, 2, 0, 0, 0)
    coins = []
    for code in range(64):
        environment = verified(Vault, {"control": "coin"})()
        row = {"code": code, "task_id": str(code)}
        played = rollout.replay(environment, row, [opened()])
        assert played == rollout.replay(environment, row, [opened()])  # the same word on the same question
        coins.append(counts(played)["refused"])
    assert 20 < sum(coins) < 44


def test_an_oracle_knows_nothing_of_an_episode_that_comes_out_differently():
    class Moody(Vault):
        resets = 0

        def reset(self, **columns):
            Moody.resets += 1
            return super().reset(**columns)

        def turn(self, to: int) -> str:
            """Turn the dial.

            Args:
                to: A number.
            """
            super().turn(to)
            return f"Turn {Moody.resets}."

    played = play(verified(Moody, {"control": "oracle", "unanswered": "refuse"})(), turned(CODE), opened())
    assert counts(played) == {"checks": 1, "refused": 1, "spent": 0, "unanswered": 1}


@pytest.mark.parametrize("prompt", [None, [{"role": "system", "content": "Open it."}, {"role": "user", "content": ""}]])
def test_questions_are_those_of_a_simulated_world_without_what_was_refused(prompt):
    with OpenAIServer(knows) as server:
        play(made(server)(), opened(), turned(7, "Hm."), opened(), turned(CODE), opened(), prompt=prompt)
        asked = [body["messages"] for body in server.bodies]
    with OpenAIServer(knows) as server:  # the same dialogues in a world model's world
        environment = simulated(Vault, {"url": server.base_url, "model": "world"})()
        play(environment, opened(), prompt=prompt)
        play(environment, turned(7, "Hm."), opened(), prompt=prompt)
        play(environment, turned(7, "Hm."), turned(CODE), opened(), prompt=prompt)
        simulations = [body["messages"] for body in server.bodies]
    assert len(asked) == 3
    assert all(messages in simulations for messages in asked)
    assert REFUSAL not in json.dumps(asked)


def test_of_a_turn_with_several_calls_what_is_before_the_call_is_asked_about():
    with OpenAIServer(knows) as server:
        both = Action(calls=(*turned(CODE).calls, *opened().calls))
        played = play(made(server)(), both)
        assert texts(played) == ["The dial is at 3.", "It opens."]
        asked = server.bodies[-1]["messages"][-1]["content"]
        assert "turn(" in asked
        assert "open(" in asked
        other = Action(calls=(*opened().calls, *turned(CODE).calls, *opened().calls))
        played = play(made(server)(), other)
        assert texts(played) == [REFUSAL, "The dial is at 3.", "It opens."]
        first, second = (body["messages"][-1]["content"] for body in server.bodies[-2:])
        assert ("turn(" in first, first.count("open(")) == (False, 1)
        assert ("turn(" in second, second.count("open(")) == (True, 1)  # the refused one is not in it


@pytest.mark.parametrize(("threshold", "passes"), [(0.5, True), (0.51, False), (0.75, False), (0.25, True)])
def test_the_share_of_continuations_that_succeed(threshold, passes):
    """Two of four succeed."""
    seeds = {}

    def reply(body):
        seeds.setdefault(body["seed"], len(seeds))
        return always(body) if seeds[body["seed"]] % 2 else never(body)

    with OpenAIServer(reply) as server:
        played = play(made(server, model={"temperature": 1.0}, samples=4, threshold=threshold)(), opened())
    assert len(seeds) == 4
    assert all(body["temperature"] == 1 for body in server.bodies)
    assert counts(played) == {"checks": 1, "refused": int(not passes), "spent": 0, "unanswered": 0}


def test_continuations_of_a_check_wait_at_the_same_time():
    """Four that take a third of a second each are no second of waiting."""
    model = {"temperature": 1.0, "deadline": 1.2}
    with OpenAIServer(always, latency=0.35) as server:
        played = play(made(server, model=model, samples=4, tools=["turn"])(), turned(5), turned(6))
    assert counts(played) == {"checks": 2, "refused": 0, "spent": 0, "unanswered": 0}


@pytest.mark.parametrize(("good", "failed", "passes"), [(2, 2, True), (1, 3, True), (0, 4, None)])
def test_continuations_without_an_answer_do_not_count(good, failed, passes):
    assert good + failed == 4

    def reply(body):
        seen.append(1)
        return always(body) if len(seen) <= good else ""

    seen = []
    with OpenAIServer(reply) as server:
        environment = made(
            server, model={"temperature": 1.0, "repair": 0}, samples=4, threshold=1.0, unanswered="refuse"
        )
        played = play(environment(), opened())
    assert counts(played)["unanswered"] == (passes is None)
    assert counts(played)["refused"] == (passes is None)


@pytest.mark.parametrize(("depth", "questions", "passes"), [(2, 2, False), (3, 3, True), (4, 3, True)])
def test_an_agent_plays_on_in_a_longer_continuation(depth, questions, passes):
    """`turn(7)` is checked: it succeeds if the agent turns on to 3 and opens the vault, in two more turns."""

    def act(body):
        said = [one for one in body["messages"] if one["role"] == "assistant"]
        agents.append(body)
        name, arguments = (
            ("open", {})
            if said[-1]["tool_calls"][0]["function"]["arguments"] in ('{"to": 3}', {"to": 3})
            else ("turn", {"to": CODE})
        )
        call = {"id": "a", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    agents = []
    with OpenAIServer(knows) as server, OpenAIServer(act) as agent:
        settings = {"tools": ["turn"], "depth": depth, "agent": {"url": agent.base_url, "model": "agent"}}
        environment = made(server, **settings)()
        played = play(environment, turned(7))
        assert len(server.bodies) == questions == played.metadata["figures"]["verify/questions"]
        assert counts(played) == {"checks": 1, "refused": int(not passes), "spent": 0, "unanswered": 0}
        assert len(agents) == questions - 1
        assert {one["function"]["name"] for one in agents[0]["tools"]} == {"turn", "open"}
        if not passes:  # the agent that plays on has read of the refusal, and the world model has not
            play(environment, turned(7), turned(7))
            assert REFUSAL in json.dumps(agents[-1])
            assert REFUSAL not in json.dumps(server.bodies)


@pytest.mark.parametrize(("status", "verdict"), [(None, "refused"), ("400", "unanswered")])
def test_an_agent_that_gives_up_or_gives_no_answer(status, verdict):
    with OpenAIServer(knows) as server, OpenAIServer(lambda _: "I give up.", faults=lambda _: status) as agent:
        settings = {"depth": 2, "agent": {"url": agent.base_url, "model": "agent"}, "tools": ["turn"]}
        played = play(made(server, **settings)(), turned(7))
    assert played.turns[0].observations[0].data["verify"]["verdict"] == verdict


def test_an_agent_whose_server_refuses_the_model_ends_the_run():
    with OpenAIServer(knows) as server, OpenAIServer(faults=lambda _: "404") as agent:
        settings = {"depth": 2, "agent": {"url": agent.base_url, "model": "agent"}, "tools": ["turn"]}
        with pytest.raises(UserError, match="status 404"):
            play(made(server, **settings)(), turned(7))


@pytest.mark.parametrize(("unanswered", "out"), [("execute", True), ("refuse", False)])
def test_without_an_answer_the_config_says_what_follows(unanswered, out):
    with OpenAIServer(lambda body: "") as server:  # malformed, and asked for once again
        environment = made(server, unanswered=unanswered)()
        played = play(environment, turned(CODE), opened())
    assert played.success is out
    assert counts(played) == {"checks": 1, "refused": int(not out), "spent": 0, "unanswered": 1}
    assert len(server.bodies) == 2
    gone = verified(Vault, {"world_model": {"url": server.base_url, "model": "world", "patience": 0.05}})
    played = play(gone(), turned(CODE), opened())
    assert played.success is True
    assert counts(played)["unanswered"] == 1


def test_a_server_that_refuses_the_model_ends_the_run():
    with OpenAIServer(faults=lambda number: "401") as server:
        environment = made(server)()
        with pytest.raises(UserError, match="status 401"):
            play(environment, opened())
        with pytest.raises(UserError, match="status 401"):
            environment.reset(code=CODE)


def odd(call, trajectory):
    return call.name == "turn" and len(trajectory.turns) % 2 == 1


def fails(call, trajectory):
    raise RuntimeError(call.name)


@pytest.mark.parametrize(
    ("what", "checked"),
    [
        ({}, [False, False, True]),
        ({"tools": ["turn"]}, [True, True, False]),
        ({"pattern": r'^turn\(.*"to": [57]\}'}, [True, True, False]),
        ({"pattern": '"to": 7'}, [False, True, False]),
        ({"when": "test_verified:odd"}, [False, True, False]),
        ({"tools": ["open"], "pattern": '"to": 7'}, [False, True, True]),
        ({"when": "test_verified:fails"}, [True, True, True]),
    ],
)
def test_what_is_checked(what, checked, monkeypatch):
    monkeypatch.syspath_prepend(str(__file__).rpartition("/")[0])
    if "pattern" in what:
        pytest.importorskip("re2")
    with OpenAIServer(always) as server:
        played = play(made(server, **what)(), turned(5), turned(7), opened())
    assert ["verify" in seen.data for turn in played.turns for seen in turn.observations] == checked


def test_with_a_budget_of_0_it_is_the_environment_itself():
    assert verified(Vault, {"budget": 0}) is Vault
    assert verified(Vault, {"budget": 0, "world_model": {"model": "w"}, "tools": ["open"]}) is Vault


def test_calls_that_do_not_fit_or_come_late_are_not_checked():
    with OpenAIServer(never) as server:
        environment = made(server, tools=["turn", "open"])()
        environment.reset(code=CODE)
        with pytest.raises(TypeError):
            environment.turn(way=1)
        environment.over = True
        with pytest.raises(ValueError, match="over"):
            environment.open()
        assert not server.bodies
        assert report(environment)["verify/checks"] == 0


class Automatic(Vault):
    """A tool that calls others of its world."""

    def crack(self) -> str:
        """Turn the dial to the right number and open the vault."""
        self.turn(to=self.code)
        return self.open()


@pytest.mark.parametrize(("tools", "checks"), [(["crack"], 1), (["open", "turn"], 0)])
def test_calls_that_a_world_makes_itself_are_not_checked(tools, checks):
    with OpenAIServer(always) as server:
        played = play(made(server, Automatic, tools=tools)(), Action(calls=(Call(name="crack", arguments={}),)))
    assert (texts(played), played.success) == (["It opens."], True)
    assert counts(played)["checks"] == len(server.bodies) == checks


def test_hosts_tell_it_of_turns_and_wait_for_the_answer():
    """Two environments ask at the same time, before their calls run."""
    with OpenAIServer(knows, latency=0.05) as server:
        environments = [made(server, model={"cache": False})() for _ in range(2)]
        for one in environments:
            one.reset(code=CODE)
            call = {"type": "function", "function": {"name": "open", "arguments": "{}"}}
            EpisodePort(one).turn({"role": "assistant", "content": "", "tool_calls": [call]})
        for one in environments:
            asyncio.run(EpisodePort(one).ready())
        assert len(server.bodies) == server.most_at_once == 2
        assert [one.open() for one in environments] == [REFUSAL] * 2
        assert len(server.bodies) == 2
        for (
            one
        ) in environments:  # without a note, a call is a turn of its own; what a host answered itself is in the history
            EpisodePort(one).turn(Action(calls=(Call(name="fly", arguments={}),)), [REFUSAL])
            EpisodePort(one).turn(turned(CODE), ["There is no fly."])
            one.turn(to=CODE)
            assert one.open() == "It opens."
        end_together([EpisodePort(one) for one in environments], [0] * len(environments))
        assert "There is no fly." in json.dumps(server.bodies[-1])
        assert REFUSAL not in json.dumps(server.bodies)


def test_it_goes_with_rewards_control_and_tags():
    with OpenAIServer(knows) as server:
        perturbed = controlled(Vault, {"perturbations": [{"name": "error", "rate": 1.0, "tools": ["turn"]}]})
        environment = rewarded(made(server, perturbed), rescale=True, format_penalty=0.1)()
        played = play(environment, turned(CODE), opened())
        assert counts(played)["checks"] == played.metadata["figures"]["control/error"] == 1
        assert played.success is False
        assert texts(played)[0] != "The dial is at 3."
        assert texts(played)[0] in [
            message["content"] for message in server.bodies[-1]["messages"]
        ]  # as the agent read it
    wordle = load("wordle")
    row = wordle.rows(1)[0]
    with OpenAIServer(lambda body: "no") as server:
        environment = in_tags(made(server, wordle.environment, refusal="Not yet."))()
        columns = {name: value for name, value in row.items() if name != "prompt"}
        environment.reset(**columns)
        call = {"type": "function", "function": {"name": "act", "arguments": json.dumps({"actions": "crane"})}}
        EpisodePort(environment).turn({"role": "assistant", "content": "<action>crane</action>", "tool_calls": [call]})
        assert environment.act("crane") == "Not yet."
        assert "<action>" not in json.dumps(server.bodies)
        assert report(environment)["verify/questions"] == len({json.dumps(one) for one in server.bodies})


MODEL = {"model": "w", "url": "http://localhost:1/v1"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("yes", "verify is 'yes'; write fields"),
        ({}, "verify.world_model is missing"),
        ({"world_model": {**MODEL, "success": "rule", "rule": "a:b"}}, "verify.world_model.success is for simulated worlds"),
        ({"world_model": MODEL, "tools": []}, "verify.tools is []; write a list of names"),
        ({"world_model": MODEL, "threshold": 0}, "verify.threshold is 0; write a share > 0, up to 1"),
        ({"world_model": MODEL, "depth": 2}, "verify.depth is 2, and agent is missing"),
        ({"world_model": MODEL, "agent": MODEL}, "verify.depth is 1, and agent is given"),
        ({"world_model": MODEL, "samples": 3}, "verify.samples is 3, and at temperature 0 all are the same"),
        ({"world_model": {**MODEL, "parameters": {"a": [{1: 2, "b": 3}]}}}, "parameters['a'][0][1] is 2; write"),
        ({"world_model": MODEL, "refusal": " "}, "verify.refusal is ' '; write what the agent reads"),
        ({"control": "orcale"}, "verify.control is 'orcale'; did you mean 'oracle'"),
        ({"control": "coin", "world_model": MODEL}, "verify.world_model is for a world model, and control is coin"),
        ({"control": "coin", "samples": 2}, "verify.samples is for a world model, and control is coin"),
        ({"world_model": MODEL, "when": "no_such:thing"}, "verify.when: there is no module 'no_such'"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_config_is_one_line(values, message):
    with pytest.raises(UserError) as error:
        VerifyConfig.read(values, "verify")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_pattern_is_linear_or_refused():
    pytest.importorskip("re2")
    with pytest.raises(UserError, match=r"verify.pattern: .*no look-around"):
        VerifyConfig.read({"world_model": MODEL, "pattern": "(?=a)b"}, "verify")


def test_thousands_of_calls_in_one_turn_take_linear_time():
    environment = verified(Vault, {"world_model": MODEL})()

    def work(actions):
        environment.reset(code=CODE)
        for action in actions:
            EpisodePort(environment).turn(action)
            for call in action.calls:
                environment.turn(**call.arguments)

    def make(count):
        return [Action(calls=tuple(Call(name="turn", arguments={"to": n}) for n in range(count)))]

    assert too_slow(work, make, largest=16_000) is None


def test_a_call_is_found_by_its_arguments_or_as_the_next_of_its_tool():
    calls = [Call(name=name, arguments={"to": to}) for name, to in (("turn", 1), ("open", 1), ("turn", 2), ("turn", 3))]
    waiting = PlayedTurn(Action(calls=tuple(calls)), [3, 2, 0])
    assert [waiting.find("turn", {"to": to}) for to in (2, "9", 3)] == [2, 0, 3]
    assert waiting.find("open", {"to": 1}) is None  # the host answered it
    waiting.take(2)
    assert waiting.find("turn", {"to": 2}) == 0


def declares(irreversible):
    return type("Vault", (Vault,), {"irreversible": irreversible})


@pytest.mark.parametrize(
    ("world", "settings", "message"),
    [
        (Vault, {"tools": ["opne"]}, "verify.tools: Vault has no tool 'opne'; did you mean 'open'"),
        (load("grid").environment, {}, "verify: GridEnvironment says of no tool that it is irreversible"),
        (simulated(Vault, MODEL), {}, "verify: Vault is simulated, and a world model plays it already"),
        (declares("open"), {}, "verify: Vault.irreversible is 'open', and 'o' is no tool; write a tuple of names"),
        (declares(("opne",)), {}, "and 'opne' is no tool"),
    ],
)  # fmt: skip
def test_a_world_that_does_not_fit_is_refused(world, settings, message):
    with pytest.raises(UserError) as error:
        verified(world, {"world_model": MODEL, **settings})
    assert message in str(error.value)


def test_a_config_is_read_from_a_file(tmp_path):
    path = tmp_path / "v.yaml"
    for values in (config := {"budget": 2, "world_model": MODEL}), {"verify": config, "environment": "shop"}:
        path.write_text(yaml.safe_dump(values))
        assert read_block(str(path), "--verify", "verify", VerifyConfig).budget == 2
    for text, why in (("budget: [", "is not YAML"), ("buget: 2", r"v.yaml: .*budget")):
        path.write_text(text)
        with pytest.raises(UserError, match=why):
            read_block(str(path), "--verify", "verify", VerifyConfig)


def test_a_config_is_read_from_json_in_the_place_of_a_file():
    assert read_block(json.dumps({"budget": 2, "world_model": MODEL}), "--verify", "verify", VerifyConfig).budget == 2
    for text, why in (('{"budget": [', "^--verify is not YAML"), ('{"buget": 2}', "^--verify: .*budget")):
        with pytest.raises(UserError, match=why):
            read_block(text, "--verify", "verify", VerifyConfig)
