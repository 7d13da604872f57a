"""Twice the text takes about twice the time, in everything that reads what a policy, a dataset, a server or a file says.

Patterns have a test of their own (test_patterns.py), and so have worlds (worlds/test_contract.py). A new reader, reward or
caller of `untrusted.loads` fails here until it is in a table.
"""

import copy
import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.formats import DOCUMENTS
from support.timing import ENOUGH, repeated, too_slow
from wm_plugin.client import replies
from wm_plugin.client.answers import Answer
from wm_plugin.client.server import Completion, Server, _completion, _line, _seconds
from wm_plugin.data import build, expand
from wm_plugin.data.filter import NAMES, Filter
from wm_plugin.data.hidden_context import read_context
from wm_plugin.data.kinds import KINDS
from wm_plugin.data.prompts import load as load_prompts
from wm_plugin.data.readers import FORMATS, read_rows
from wm_plugin.data.schema import Action, Call, Context, Observation, Trajectory, Turn
from wm_plugin.data.summary import Summary
from wm_plugin.data.turn_texts import categories
from wm_plugin.data.values import mask_values, profile_to_context, schema_of
from wm_plugin.hosting.predictions import acting
from wm_plugin.hosting.tags import actions_of
from wm_plugin.lab.agents.lookahead import decision
from wm_plugin.lab.evaluation import published_replies, rule_cases, rule_commands
from wm_plugin.lab.evaluation.proposals import read_proposal
from wm_plugin.lab.evaluation.rollout_rows import read_rows as read_masks_rows
from wm_plugin.lab.report import difference
from wm_plugin.lab.simulate.beside import aligned
from wm_plugin.lab.synthesis.scenarios import PROMPTS, Refused, read_reply
from wm_plugin.objectives.information import category
from wm_plugin.rewards import REWARDS, extract
from wm_plugin.rewards import rouge as rouge_module
from wm_plugin.rewards.background import fitted
from wm_plugin.rewards.delimit import neutral, windows
from wm_plugin.rewards.detect import judge_talk, self_praise
from wm_plugin.rewards.rule_code import _read as read_code_verdict
from wm_plugin.rewards.rule_errors import error_kind
from wm_plugin.rewards.verdict import fields, is_forged
from wm_plugin.runtime import secrets
from wm_plugin.tokens.chat import named_results, plain_messages, turns
from wm_plugin.tokens.harmless import harmless
from wm_plugin.tokens.view import Token, to_html, to_text
from wm_plugin.untrusted import loads
from wm_plugin.worlds.agents.outcomes import Marks
from wm_plugin.worlds.agents.policies import read_action
from wm_plugin.worlds.fictional.score import Column, NoTableError
from wm_plugin.worlds.fictional.score import read as read_table
from wm_plugin.worlds.grid import GridEnvironment
from wm_plugin.worlds.kit.choices import choices
from wm_plugin.worlds.kit.commands import CommandEnvironment
from wm_plugin.worlds.wrappers.control import ControlConfig, ControlEpisode
from wm_plugin.worlds.wrappers.control.withheld import Withheld
from wm_plugin.worlds.wrappers.counting import Counts
from wm_plugin.worlds.wrappers.simulated_episode import Simulation

pytestmark = pytest.mark.slow  # they take a minute of the processor together

NIGHT = ENOUGH > 0.01
LARGEST = 64_000 if NIGHT else 8_000
UNITS = [
    "\n", " ", "\r\n", "\t", "\u200b", "̣́", "゙ﾟ", "\ud800", "\x00", "é", "a", "a ", "a b c d. ", "0", "1,",
    "{", "[", '["', '{"a":', '{"a":1},', "[1],", '"', "\\", '\\"', "1e9", "-aa", "<", "< ", "</", "<|", "&",
    "`", "```\n", "* ", "<tool_call>", "</tool_call>", '<tool_call>{"name":"f"}</tool_call>',
    "<tool_response>", "</tool_response>\n", "<tools>\n", "<think>", "</think>", "<function=f>",
    "<parameter=a>", "</parameter>", "<action>", "</action>", "<next_state>", "</next_state>", "</s>", " </s>",
    "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>\n", "\nuser\n", "\nassistant\n", "system\n",
    "user\n<tool_response>", "\n> ", "\n> think: ", "Thought: ", "Action: ", "**Action:**",
    "**Action:**\n```", "**Environment Observation:**", "[[begin ", "<final_evaluation>",
    "</final_evaluation>", "final_evaluation ", "score of 5 for each\n", "give a ", "error: ", "with all b ",
    "a1: b2: ", "(w) ", "HTTP/1.1 ", ",,  ]", "$x", "%s", "nothing happens. ", "connection ", "{{", "{% ",
    "<!--", "sk-aaaaaaaa ",
]  # fmt: skip


def check(work: Callable[[Any], object], make: Callable[[int], Any], what: object, largest: int = LARGEST) -> None:
    slow = too_slow(work, make, largest=largest)
    assert slow is None, f"{what}: {slow}"


# Readers: hostile texts in the place of each text of a valid record, and hostile numbers of the items of each list.


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of the texts and lists of a document."""
    if isinstance(value, str | list):
        yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], make: Callable[[Any], Any]) -> Any:
    """A document with another value at a path."""
    if not path:
        return make(value)
    value = copy.copy(value)
    value[path[0]] = replaced(value[path[0]], path[1:], make)
    return value


def at(value: Any, path: tuple[Any, ...]) -> Any:
    return at(value[path[0]], path[1:]) if path else value


@pytest.mark.parametrize("name", FORMATS)
def test_readers(tmp_path, name):
    document = DOCUMENTS[name]
    file, draw = tmp_path / "x.json", random.Random(name)
    texts = [path for path in places(document) if isinstance(at(document, path), str)]
    shapes: list[tuple[tuple[Any, ...], str]] = [
        *((path, unit) for unit in UNITS for path in (texts if NIGHT else draw.sample(texts, 1))),
        *((path, "") for path in places(document) if isinstance(at(document, path), list) and path),
    ]

    def work(path: Path) -> None:
        for _ in read_rows(path, name):
            pass

    for path, unit in shapes:

        def make(size: int) -> Path:
            if unit:  # noqa: B023
                values: Any = replaced(document, path, lambda _: repeated(unit)(size))  # noqa: B023
            else:
                values = replaced(document, path, lambda items: items * (size // 64))  # noqa: B023
            made = file.with_name(f"{size}.json")
            made.write_text("\n".join(map(json.dumps, values)) if isinstance(values, list) else json.dumps(values))
            return made

        check(work, make, (path, unit or "many items"))


def test_each_reader_has_a_document():
    assert DOCUMENTS.keys() == set(FORMATS)


# Rewards: hostile predictions, observations, columns and replies.


class Judge(Server):
    """A server that says what it is told to."""

    reply = ""

    def complete(self, conversations: Any, **_: Any) -> Any:
        return [Completion(self.reply) for _ in conversations]

    def post(self, path: str, bodies: Any, read: Any) -> Any:
        return [
            read({"data": [{"index": n, "embedding": [1.0, 2.0]} for n, _ in enumerate(body["input"])]})
            for body in bodies
        ]


def judge() -> Judge:
    return Judge("http://localhost/v1", "judge", max_retries=1)


def embedded(reward: Any) -> Any:
    getattr(reward, "embedding", reward)._model.server = judge()
    return reward


SERVED = {"model": "m", "base_url": "http://localhost/v1"}
RULES = [
    {"range": {"min": 0}},
    {"error": True},
    {"same": True},
    {"json": "$..a"},
    {"regex": "(a*)*b"},
    {"items": ["a", "b c"]},
]
MADE: dict[str, Callable[[], Any]] = {
    "embedding": lambda: embedded(REWARDS.get("embedding")(**SERVED)),
    "exact": lambda: REWARDS.get("exact")(json=True, ignore_whitespace=True),
    "guarded": lambda: REWARDS.get("guarded")("exact", praise=0.5, echo=0.5),
    "hybrid": lambda: REWARDS.get("hybrid")(REWARDS.get("rubric")(judge(), max_failure_share=1.0)),
    "json": lambda: REWARDS.get("json")(),
    "judge": lambda: REWARDS.get("judge")(judge(), max_failure_share=1.0),
    "reference": lambda: REWARDS.get("reference")(judge(), max_failure_share=1.0),
    "rouge": lambda: REWARDS.get("rouge")(numbers="exact"),
    "rubric": lambda: REWARDS.get("rubric")(judge(), max_failure_share=1.0),
    "rules": lambda: REWARDS.get("rules")(verifier=RULES),
    "rwml": lambda: embedded(REWARDS.get("rwml")(**SERVED)),
    "turing": lambda: REWARDS.get("turing")(judge(), max_failure_share=1.0),
    "word_f1": lambda: REWARDS.get("word_f1")(),
}


def test_each_reward_is_tried():
    assert MADE.keys() == set(REWARDS), (
        "a reward that is not in MADE of tests/test_linear.py, where hostile texts are tried"
    )


@pytest.mark.parametrize("name", MADE)
def test_rewards(name, monkeypatch):
    monkeypatch.setattr(
        rouge_module, "_LARGEST", 100_000
    )  # pairs of tokens: fewer are compared as a whole, within a second
    reward = MADE[name]()

    def score(text: str) -> None:
        Judge.reply = f"<final_evaluation>{text}"
        other = text[: len(text) // 2] + "!" + text[len(text) // 2 :]
        columns = {"context": [text], "action": [text], "observer": ["tool"], "reference": [text], "history": [[text]]}
        reward([text], [other], **columns)

    for unit in UNITS:
        check(score, repeated(unit), unit)


# Everything else that reads a text.

KEY = "sk-aaaaaaab"
RWML = load_prompts("rwml")


def action_of_a_call(text: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": text, "arguments": text}}
    read_action({"content": text, "tool_calls": [call]})
    plain_messages([{"role": "assistant", "content": text, "tool_calls": [call]}])
    categories(
        {"role": "assistant", "content": text, "tool_calls": [call]}, [{"role": "tool", "name": text, "content": text}]
    )


def redacted(text: str) -> None:
    secrets.hold(KEY)
    data = json.dumps(text).encode()
    secrets.redact(text)
    secrets.redact_escaped(text)
    if secrets.may_hold(data):
        secrets.redact_json(json.loads(data))


def simulated(text: str) -> None:
    simulation = Simulation(load_prompts("word2world"))
    simulation.step(Action(calls=(Call(name="f"),) * 2), Answer(f"Tool f:\n{text}"))
    simulation.question(Action(text=text))


def refused(read: Callable[[str], object]) -> Callable[[str], object]:
    """A parser whose refusals are all right."""

    def work(text: str) -> object:
        try:
            return read(text)
        except ValueError:
            return None

    return work


def perturbed(text: str) -> None:
    entries = [
        {"name": "paginate", "tools": ["f"], "size": 2},
        {"name": "partial", "rate": 1},
        {"name": "tease", "texts": ["answer", "aaaa", "42"], "words": 3},
        {"name": "style", "form": "json"},
    ]
    control = ControlEpisode(ControlConfig.read({"perturbations": entries}, "control"), text)
    plan = control.plan("f")
    control.perturbed(plan, text, {"text": text})
    control.guard(text, plan)


def counted(text: str) -> None:
    for environment in (GridEnvironment, CommandEnvironment):
        counts = Counts(environment, {"move": "environment"})
        counts.add(Call(name="move", arguments={"direction": text}), f"Invalid: 1 of 2\n{text}")
        counts.add(Call(name="other", arguments=text), text)


def scenario(text: str) -> None:
    for kind in PROMPTS:
        with suppress(Refused):
            read_reply(kind, f"<scenario>{text}</scenario>")


def answer_table(text: str) -> None:
    with suppress(NoTableError):
        read_table(f"| kite | mass |\n| {text[:19_000]} |", [Column("kite"), Column("mass", "mg", is_number=True)])


TEXTS: dict[str, Callable[[str], object]] = {
    "a scenario": scenario,
    "an answer's table": answer_table,
    "loads": loads,
    "a perturbed result": perturbed,
    "what is withheld": lambda text: Withheld.of([text[:50], "aaaa", "a1"]).without(text),
    "loads, strict": lambda text: loads(text, strict=True),
    "extract": extract,
    "extract, in its tag": lambda text: extract(f"<next_state>{text}"),
    "extract without a tag": lambda text: extract(text, ""),
    "neutral": neutral,
    "a judge's context": lambda text: fitted(
        f"# Task\nx\n\nAgent (turn 1):\n{text}\n\nAgent (turn 2):\n{text}", len(text)
    ),
    "windows": lambda text: windows({"observed": text, "predicted": text + "a"}, 10),
    "self_praise": lambda text: self_praise(text, text[: len(text) // 2] + "!"),
    "judge_talk": lambda text: judge_talk(text, text[: len(text) // 2] + "!"),
    "verdict": lambda text: fields(text, ["score"]),
    "verdict, beside an observation": lambda text: fields(f"{text}<final_evaluation>", ["score"], text),
    "verdict, in its tag": lambda text: fields(f"<final_evaluation>{text}</final_evaluation>", ["score"]),
    "verdict, after a thought": lambda text: fields(f"<think>{text}</think>{text}", ["score"]),
    "forged verdict": lambda text: is_forged(text, ""),
    "published verdict": lambda text: published_replies.verdict(f'{{"scores": {text}', "a"),
    "published verdict, in its tag": lambda text: published_replies.verdict(f"<a>{text}", "a"),
    "published prediction": lambda text: published_replies.prediction(text, "think"),
    "commands of an action": lambda text: list(rule_commands.commands_of(Action(text=text))),
    "command of a shell": lambda text: list(rule_commands.commands_of(Action(text=f"cat > f << {text}"))),
    "changed value": lambda text: rule_cases._put(text, text[:9] or "a", rule_cases.changed(text[:9])),
    "verdict of code": lambda text: read_code_verdict(text.encode(errors="replace"), 0),
    "error_kind": error_kind,
    "read_action": lambda text: read_action({"content": text}),
    "read_action, in its tag": lambda text: read_action({"content": f"<tool_call>{text}</tool_call>"}),
    "read_action, calls": action_of_a_call,
    "turn texts": lambda text: category(text, text + "!"),
    "schema_of": schema_of,
    "a server's line": _line,
    "a server's completion": lambda text: _completion({"choices": [{"message": {"content": text}}]}),
    "a server's seconds": _seconds,
    "a world model's answer": simulated,
    "counts of what is observed": counted,
    "harmless": lambda text: harmless(text, ("@@END@@",)),
    "harmless, in a token": lambda text: harmless(f"<|{text}|>"),
    "an imagined observation": Marks(over="!", won="P", lacks="B", reward="Reward:").read,
    "a decision": lambda text: decision(Answer(text)),
    "actions in tags": actions_of,
    "actions in tags, inside": lambda text: actions_of(f"<action>{text}"),
    "an answer without its predictions": lambda text: acting(text, "action"),
    "a prediction": lambda text: acting(f"<action>{text}", "action"),
    "a docstring's choices": choices,
    "a docstring's choices, in a list": lambda text: choices(f"One of {text}"),
    "keys": redacted,
    "a proposal": lambda text: read_proposal(text, RWML, RWML.variants["v0"]),
    "a proposal, in its tag": lambda text: read_proposal(f"<system_template>{text}", RWML, RWML.variants["v0"]),
    "a context by a server": refused(read_context),
    "a context by a server, in its tag": refused(lambda text: read_context(f"<summary>{text}</summary><permissions>")),
    "lines side by side": lambda text: aligned(text, text[: len(text) // 2] + "!"),
    "view": lambda text: (to_html([Token(text, "content", text, 1.0)]), to_text([Token(text, "policy")])),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name):
    for unit in UNITS:
        check(TEXTS[name], repeated(unit), unit)


def trajectory(text: str, count: int = 1) -> Trajectory:
    call = Call(name="f", arguments=text, id=text)
    observed = (Observation(kind="tool", text=text, tool="f", call=0), Observation(kind="environment", text=text))
    turns = (Turn(action=Action(text=text, thought=text, calls=(call,)), observations=observed),) * count
    context = Context(task=text, initial_state=text, action_space=({"name": text},), simulation_instruction=text)
    return Trajectory(turns=turns, context=context, success=True, metadata={"user_profile": {"known_info": text}})


def through(kind: str | None, folder: Path) -> Callable[[Trajectory], object]:
    """Everything that is done with trajectories; with a kind, the samples of it."""

    def steps(made: Trajectory) -> None:
        kept = list(Filter(NAMES)([made]))
        list(expand([made]))
        summary = Summary()
        summary.add(profile_to_context(mask_values(made)))
        summary.as_dict()
        assert len(kept) <= 1

    def sample(made: Trajectory) -> None:
        source = folder / "x.jsonl"
        source.write_bytes(made.to_bytes() + b"\n")
        build(
            source,
            kind or "",
            "trl",
            folder / "out.jsonl",
            prompts="mcp" if hasattr(KINDS[kind or ""], "family") else None,
        )

    return sample if kind else steps


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_trajectories(tmp_path, kind):
    for unit in UNITS if NIGHT else random.Random(str(kind)).sample(UNITS, 20):
        check(
            through(kind, tmp_path),
            lambda size, unit=unit: trajectory(repeated(unit)(size).encode(errors="replace").decode()),
            unit,
        )
    check(through(kind, tmp_path), lambda size: distinct(size // 64), "turns")


def distinct(count: int) -> Trajectory:
    """A trajectory of as many turns, each another one."""
    made = trajectory("x")
    return made.model_copy(
        update={"turns": tuple(trajectory(f"x{number}").turns[0] for number in range(max(1, count)))}
    )


def calls(count: int) -> list[dict[str, Any]]:
    """As many calls in one message, answered in reverse."""
    names = [f"i{number}" for number in range(count)]
    made = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in names]
    results = [{"role": "tool", "tool_call_id": name, "content": "x"} for name in reversed(names)]
    return [{"role": "assistant", "content": "", "tool_calls": made}, *results]


def named(count: int) -> list[dict[str, Any]]:
    """The same with the names of other tools."""
    assistant, *results = calls(count)
    for number, call in enumerate(assistant["tool_calls"]):
        call["function"]["name"] = f"f{number}"
    return [assistant, *({**result, "name": f"f{count - number}"} for number, result in enumerate(results))]


MANY: dict[str, tuple[Callable[[Any], object], Callable[[int], Any]]] = {
    "results of calls": (lambda messages: list(turns(named_results(plain_messages(messages)))), calls),
    "results of no call": (named_results, lambda count: calls(1) + [{"role": "tool", "name": "g", "content": ""}] * count),
    "categories": (lambda messages: categories(messages[0], messages[1:]), calls),
    "categories of other tools": (lambda messages: categories(messages[0], messages[1:]), named),
    "tokens": (to_html, lambda count: [Token("<\x1b", "content", "\u202e", 0.5)] * count),
    "vector": (replies.vector, lambda count: [0.5] * count),
    "difference": (lambda texts: difference(*texts), lambda count: ("ab" * count, "ba" * count + "a")),
    "difference of lines": (lambda texts: difference(*texts), lambda count: ("a\n" * count, "b\n" * count + "a\n" * count)),
}  # fmt: skip


@pytest.mark.parametrize("name", MANY)
def test_many(name):
    work, make = MANY[name]
    check(work, make, name, largest=4096)


def test_rollouts_of_masks(tmp_path):
    def make(size: int) -> Path:
        path = tmp_path / f"{size}.jsonl"
        path.write_text(json.dumps({"messages": calls(size // 64)}) + "\n")
        return path

    check(lambda path: list(read_masks_rows(path)), make, "calls")
    for unit in UNITS:

        def text(size: int) -> Path:
            path = tmp_path / f"{size}.jsonl"
            path.write_bytes(repeated(unit)(size).encode(errors="surrogatepass"))  # noqa: B023
            return path

        check(lambda path: list(read_masks_rows(path)), text, unit)
