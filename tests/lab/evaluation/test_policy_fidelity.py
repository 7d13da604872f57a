"""A policy as its own world model: its tokens are the trainer's, and its measures those of the demo's held-out boards."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers")

from support.said import Said
from wm_plugin.client.answers import Answers
from wm_plugin.client.predict import LocalPredictor
from wm_plugin.data.schema import Action, Call, Context, Observation, Trajectory, Turn
from wm_plugin.data.transitions import expand
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation import policy_fidelity as module
from wm_plugin.lab.evaluation.policy_fidelity import PolicyModel, policy_fidelity
from wm_plugin.lab.tiny.held_out import HeldOut
from wm_plugin.lab.tiny.policy import make_model, make_tokenizer

pytestmark = pytest.mark.host

TOKENIZER = make_tokenizer()


class Oracle(torch.nn.Module):
    """Knows texts by heart: after the beginning of one it is sure of the next token, and of `wrong` after any other."""

    def __init__(self, *texts: str, wrong: str = "#") -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.known = [TOKENIZER(text).input_ids for text in texts]
        (self.wrong,) = TOKENIZER(wrong).input_ids
        self.passes = 0

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        self.passes += 1
        before = [] if past_key_values is None else past_key_values
        row = before + input_ids[0].tolist()
        logits = torch.zeros(1, input_ids.shape[1], len(TOKENIZER))
        for place in range(input_ids.shape[1]):
            seen = row[: len(before) + place + 1]
            after = [ids[len(seen)] for ids in self.known if ids[: len(seen)] == seen and len(ids) > len(seen)]
            logits[0, place, after[0] if after else self.wrong] = 50.0
        return SimpleNamespace(logits=logits, past_key_values=row)


def predictor(model):
    made = SimpleNamespace(model=model, tokenizer=TOKENIZER, ends=[TOKENIZER.eos_token_id])
    made.settings = {"weights": "w", "temperature": 0}
    return made


def turn(*moves: str, texts: tuple[str, ...], **more: object) -> Turn:
    calls = tuple(Call(name="move", arguments={"direction": move}) for move in moves)
    return Turn(
        action=Action(calls=calls),
        observations=tuple(
            Observation(kind="environment", tool="move", call=n, text=text, **more) for n, text in enumerate(texts)
        ),
    )


def episode(*turns: Turn, task: str = "one", success: bool | None = False) -> Trajectory:
    return Trajectory(turns=turns, context=Context(initial_state="ab>"), task_id=task, success=success)


EPISODE = episode(turn("U", texts=("cd>",)), turn("L", texts=("ef!",)), success=True)
TEXT = "ab>:Ucd>:Lef!"


def run(model, items=(EPISODE,), folder=None, **settings):
    answers = Answers(PolicyModel(predictor(model)), folder and folder / "answers.jsonl")
    return policy_fidelity(items, answers, folder=folder, **settings)


def value(result, name, by="", group=""):
    return result.measure(name, by, group).value


def test_it_measures_what_the_demo_measures():
    """The same likelihood of the same tokens, to the digit, and the same share of exact observations."""
    model, held_out = make_model(TOKENIZER, 0), HeldOut(TOKENIZER, 16)
    local = LocalPredictor(model, TOKENIZER, temperature=0)
    result = policy_fidelity(held_out.episodes(), Answers(PolicyModel(local)))
    measured = held_out.measure(model).ratios
    assert value(result, "nll") == pytest.approx(measured["env_nll"].mean, rel=1e-5)
    assert result.measure("exact").count == int(held_out.walks[1] and sum(map(sum, held_out.walks[1]))) / 20
    assert value(result, "exact") == measured["exact"].mean
    assert result.settings["kind"] == "policy"


def test_a_policy_that_knows_the_world_is_exact_and_generates_nothing():
    model = Oracle(TEXT)
    result = run(model)
    assert [value(result, name) for name in ("exact", "text", "word_f1", "rouge")] == [1.0] * 4
    assert value(result, "nll") == pytest.approx(0, abs=1e-6)
    assert value(result, "calibration_error") == pytest.approx(0, abs=1e-6)
    assert (result.failures, result.notes) == ({}, [])
    assert model.passes == 3  # one a question, and one for the likelihoods
    with pytest.raises(KeyError):
        result.measure("success_flag")  # a tool writes no mark


def test_a_policy_that_errs_goes_on_after_its_own_error(tmp_path):
    """The second board begins right; what follows the wrong token is what the policy makes of that, not of the real board."""
    result = run(Oracle("ab>:Ucd>:Le", "ab>:Ucd>:Lexy"), folder=tmp_path)
    assert (value(result, "exact"), result.measure("exact").count) == (0.5, 2)
    assert [value(result, "exact", "turn", turn) for turn in "12"] == [1.0, 0.0]
    rows = list(module_rows(tmp_path))
    assert [(row["real"], row["predicted"], row["tool"]) for row in rows] == [
        ("cd>", "cd>", "move"),
        ("ef!", "exy", "move"),
    ]
    assert [(row["context"], row["action"]) for row in rows] == [
        ("ab>", 'move({"direction": "U"})'),
        ("cd>", 'move({"direction": "L"})'),
    ]
    assert rows[0]["scores"]["nll"] < 1e-6 < 5 < rows[1]["scores"]["nll"]


def module_rows(folder):
    from wm_plugin.lab.evaluation.measures import read_rows

    return read_rows(folder)


def test_two_results_without_a_token_between_them_are_two():
    both = episode(turn("U", "D", texts=("cd>", "wxyz>")))
    result = run(Oracle("ab>:UDcd>wx"), [both])
    assert (value(result, "exact"), result.measure("exact").count) == (0.5, 2)
    wrong = [one for one in result.measures if (one.name, one.by) == ("token_accuracy", "")]
    assert not wrong
    # five of eight tokens are sure and right, three sure and wrong
    assert value(result, "nll") == pytest.approx(3 * 50 / 8)


def test_what_is_no_rollout_is_left_out_and_counted():
    said = Turn(action=Action(text="x"), observations=(Observation(kind="user", text="no"),))
    silent = Turn(action=Action(text="x"), observations=())
    items = [
        episode(said, task="a user speaks"),
        episode(silent, turn("U", texts=("cd>",)), task="two turns"),
        episode(turn("U", texts=("",)), task="nothing came"),
        episode(turn("U", texts=("cd>",), data={"target": False}), task="no target"),
        EPISODE,
    ]
    result = run(Oracle(TEXT), items)
    assert result.measure("exact").count == 2
    assert sorted(result.notes) == sorted(
        f"1 turns are left out: {reason}"
        for reason in (
            "a rollout of a policy has no user message after its first turn",
            "two turns of the policy without a result between them",
            "the result has no token of its own",
            "no target",
        )
    )


def test_a_whole_message_is_never_extracted_from():
    """A board may hold what a world model's answer ends with, or marks its thoughts with."""
    text = "<think>a</think>b<|im_end|>"
    result = run(Oracle(f"ab>:U{text}"), [episode(turn("U", texts=(text,)))])
    assert (value(result, "exact"), result.failures) == (1.0, {})


def test_the_limit_is_of_trajectories_and_transitions_are_refused():
    assert run(Oracle(TEXT), [EPISODE] * 3, limit=1).measure("exact").count == 2
    with pytest.raises(UserError, match="these are transitions"):
        run(Oracle(TEXT), list(expand([EPISODE])))


def test_only_a_model_in_this_process_can_be_asked():
    with pytest.raises(UserError, match="a server writes an assistant's turns"):
        policy_fidelity([EPISODE], Answers(Said(str)))


def test_answers_are_kept_and_belong_to_their_tokens(tmp_path):
    run(Oracle(TEXT), folder=tmp_path)
    kept = (tmp_path / "answers.jsonl").read_text()
    model = Oracle(TEXT)
    assert value(run(model, folder=tmp_path), "exact") == 1.0
    assert (model.passes, (tmp_path / "answers.jsonl").read_text()) == (1, kept)  # for the likelihoods alone
    other = episode(turn("U", texts=("ce>",)))
    run(model, [other], folder=tmp_path)
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 3


def test_an_unusable_template_is_one_line():
    left_out: Counter[str] = Counter()
    template = "{%- for message in messages -%}{{ message.role }}{%- endfor -%}"
    policy = predictor(Oracle(TEXT))
    cases = module.episodes([EPISODE], policy, module.inspectors_of(policy, template), left_out=left_out)
    with pytest.raises(UserError, match="template"):
        list(cases)
