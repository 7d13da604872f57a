"""From files on disk to the contents of a page."""

import re

import pytest

pytest.importorskip("jinja2")

from support.pages import Page
from support.predictions import grid_trajectories
from support.trainer_logs import write_demo, write_events, write_state, write_trackio, write_verl
from wm_plugin.data.schema import Observation
from wm_plugin.data.write import write
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation.measures import Evaluation, Measure, write_result, write_rows
from wm_plugin.lab.report import export, overview, played, render, sources, training
from wm_plugin.lab.report.arms import without_seed

ATTACK = "\"'><script>alert(1)</script><img src=http://evil.example/x>\x1b[31m"


def points(level=0.0, name="reward", steps=(1, 2, 3)):
    return {name: {step: level + step / 10 for step in steps}, "loss": {step: 1 - step / 10 for step in steps}}


def view(*paths, patterns=()):
    return overview.overview(sources.collect([str(path) for path in paths]), dict(patterns))


def page(*paths, patterns=(), **options):
    found = sources.collect([str(path) for path in paths])
    samples = played.samples(found.rollouts)
    shown = overview.overview(found, dict(patterns))
    return Page(render(overview.report(shown, samples=samples, **options)), "Report"), shown


def evaluation(folder, name="one-step", subject="model", exact=0.5, text="ok", **fields):
    folder.mkdir(parents=True)
    measures = fields.pop("measures", None) or [
        Measure("exact", exact, "share", 4, low=exact - 0.1, high=exact + 0.1, failed=1, with_failed=exact * 0.8),
        Measure("nll", 1.25, "nats", 4),
        *(Measure("exact", exact, "share", 2, "turn", str(turn)) for turn in (1, 2, 10)),
        *(Measure("exact", exact, "share", 2, "tool", tool) for tool in ("search", text)),
    ]
    write_result(Evaluation(name, subject, f"data {text}", {}, measures, {f"cut {text}": 1}, [f"note {text}"]), folder)
    rows = [
        {
            "context": f"context {number} {text}",
            "action": f"go {number}",
            "real": "It is open.",
            "predicted": text if number == 7 else "It is open." if number % 2 else "It is opened.",
            "scores": {"exact": float(number % 2), "word_f1": 0.0 if number == 7 else 0.5 + number / 100},
        }
        for number in range(12)
    ]
    write_rows([*rows, {"context": "c", "action": "a", "real": "r", "predicted": None, "failure": "cut"}], folder)
    return folder


def test_one_run_in_every_log_is_one_run(tmp_path):
    folder = tmp_path / "runs" / "echo_seed0"
    write_state(folder, points(steps=(1, 2)), checkpoint=2)
    write_state(folder, points(9.0, steps=(1,)), checkpoint=1)  # an earlier checkpoint has nothing of its own
    write_state(folder, points(steps=(1,)), checkpoint=3).write_text('{"log_hi')  # a full disk cut it
    write_events(folder / "runs" / "Jan01_host", {"train/reward": {1: 5.0, 3: 0.3}})
    (arm,) = view(folder).arms
    assert (arm.name, arm.seeds) == ("echo", 1)
    assert {step: round(value, 5) for step, value in arm.runs[0].values["reward"].items()} == {1: 0.1, 2: 0.2, 3: 0.3}
    assert len(arm.runs[0].sources) == 2


def test_a_folder_of_runs_is_sorted_into_arms(tmp_path):
    for seed in range(3):
        write_state(tmp_path / f"echo_seed{seed}", points(seed / 10), checkpoint=3)
    write_events(tmp_path / "grpo_seed0", points())
    write_verl(tmp_path / "project" / "verl-s1.jsonl", points(name="critic/rewards/mean"))
    write_trackio(tmp_path / "trackio" / "p.db", {"tracked": points()})
    shown = view(tmp_path)
    assert {arm.name: arm.seeds for arm in shown.arms} == {"echo": 3, "grpo": 1, "verl": 1, "tracked": 1}
    assert view(tmp_path, tmp_path).arms == shown.arms  # each file is read once
    assert [arm.name for arm in view(tmp_path, patterns={"a": f"{tmp_path}/*_seed*", "b": "tracked"}.items()).arms] == [
        "a", "b", "verl",
    ]  # fmt: skip


def test_runs_that_broke_off_are_named(tmp_path):
    for seed, last in enumerate((100, 100, 5)):
        write_state(tmp_path / f"echo_seed{seed}", points(steps=range(5, last + 1, 5)))
    write_state(tmp_path / "plain_seed0", points(steps=(50,)))
    note = "echo: its last values are of different steps; it ends at step 100, but echo_seed2 at 5"
    document, shown = page(tmp_path)
    assert shown.notes == [note]
    assert note in document.text
    assert "A note names the runs that ended before" in document.text


@pytest.mark.parametrize(
    ("places", "short"),
    [
        (["runs/a", "other/b"], ["a", "b"]),
        (["x/a/run", "x/b/run", "x/b/run"], ["a/run", "b/run", "b/run"]),
        (["x/echo/seed0", "x/echo/seed1"], ["echo/seed0", "echo/seed1"]),  # a seed alone is no name
        (["/x/a", "x/a"], None),
        ([], []),
    ],
)
def test_short_names_of_paths(places, short):
    named = sources.names(places, without_seed)
    assert named == short if short is not None else len(set(named)) == len(places)


@pytest.mark.parametrize("name", ["empty", "missing", "notes.txt", "notes.json"])
def test_paths_with_nothing_to_read(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "notes.json").write_text("{}")
    with pytest.raises(UserError, match=name):
        view(tmp_path / name)


def test_a_pattern_that_matches_nothing(tmp_path):
    write_state(tmp_path / "run", points())
    with pytest.raises(UserError, match="--arm a=b"):
        view(tmp_path, patterns={"a": "b"}.items())


def test_rows_that_cannot_be_read_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(played, "_MOST", 50)
    write(grid_trajectories(1), tmp_path / "played.jsonl")
    with (tmp_path / "played.jsonl").open("a") as file:
        file.write('[]\n{"version": "x"}\n' * 30)
    document, shown = page(tmp_path / "played.jsonl")
    assert shown.rollouts[0].summary.as_dict()["trajectories"] == 1
    assert re.search("49 rows are left out; the first: .*; `version` is no whole number", document.text)
    assert "only the first 50 rollouts are read" in document.text


def test_long_texts_of_rollouts_are_cut_on_a_page(tmp_path):
    (one,) = grid_trajectories(1)
    long = one.turns[0].model_copy(
        update={"observations": (Observation(kind="tool", text="<" * 10**6, tool="f" * 10**6),)}
    )
    write([one.model_copy(update={"turns": (long, *one.turns[1:])})], tmp_path / "played.jsonl")
    found = sources.collect([str(tmp_path / "played.jsonl")])
    html = render(overview.report(overview.overview(found, {}), samples=played.samples(found.rollouts)))
    assert len(html) < 10**6
    assert "of 1,000,000 characters are not shown" in html


def test_everything_on_a_page_of_hostile_texts(tmp_path):
    write_state(tmp_path / "echo_seed0", {**points(), ATTACK: {1: 1.0, 2: 2.0}, "echo/tool/<b>/nll": {1: 1.0, 2: 2.0}})
    write_state(tmp_path / "echo_seed1", points(0.1))
    evaluation(tmp_path / "evals" / "one", text=ATTACK, subject=ATTACK)
    rollouts = tmp_path / "played.jsonl"
    write(grid_trajectories(4), rollouts)
    document, shown = page(tmp_path)
    assert len(shown.rollouts) == len(shown.evaluations) == 1
    text = document.text
    for words in (
        "reward ends at 0.35 for echo (0.3 to 0.4, 2 seeds).", "At a glance", "Training", "Tools",
        "exact by turn", "exact by tool", "worst: word_f1 0", "typical", "Rollouts: tools and budgets",
        "Episodes that have ended", "50.0%40.0% to 60.0%", "40.0%", "Where it comes from",
    ):  # fmt: skip
        assert words in re.sub(r"\s*\n\s*", "", text) or words in text, words
    assert "<script>" in text  # as text
    assert "counts in the world-model loss" not in text  # which a tokenizer would tell


def test_each_figure_has_an_axis_and_a_unit(tmp_path):
    write_state(tmp_path / "a", points())
    weights = [
        Measure("changed", layer * 0.1, "share", 10, "layer/module", f"{layer}/{module}")
        for layer in range(12)
        for module in ("self_attn.q_proj", "mlp.up_proj")
    ]
    evaluation(tmp_path / "w", "weights", measures=weights)
    evaluation(tmp_path / "e")
    write(grid_trajectories(4), tmp_path / "played.jsonl")
    document = render(overview.report(view(tmp_path)))
    figures = re.findall(r"<figure.*?</figure>", document, re.DOTALL)
    assert len(figures) >= 8
    for figure in figures:
        title, unit = re.search(r"<h3>(.+?)(?: <small>\((.+)\)</small>)?</h3>", figure).groups()
        assert (unit is None) == (title in ("reward", "eval/reward", "loss", "eval/loss")), title
        assert re.search(r"<figcaption>.+</figcaption>", figure)
        assert len(re.findall(r"<text", figure)) > 3
    (heat,) = [figure for figure in figures if 'class="cell"' in figure]
    assert heat.count("<title>") == 24
    assert "mlp.up_proj, 10: 100.0%" in heat
    assert heat.index("mlp.up_proj, 9:") < heat.index("mlp.up_proj, 10:")


def test_hosts_names_are_shared(tmp_path):
    steps = dict(enumerate((0.1, 0.2, 0.3), 1))
    write_state(tmp_path / "plain", {"reward": steps, "entropy": steps, "eval_reward": steps})
    names = ("critic/score/mean", "actor/entropy", "val-core/sql/reward/mean@1")
    write_verl(tmp_path / "verl" / "echo.jsonl", dict.fromkeys(names, steps))
    # two sets are two metrics, and keep their names
    sets = ("actor/grad_norm", "val-core/sql/reward/mean@1", "val-core/shop/reward/mean@1")
    write_verl(tmp_path / "verl" / "sets.jsonl", dict.fromkeys(sets, steps))
    seen = view(tmp_path)
    first, *_ = training.groups(seen.arms)
    drawn = {curve.title: curve.arms for curve in first.curves}
    assert drawn["reward"] == drawn["entropy"] == drawn["eval/reward"] == ["plain", "echo"]
    assert drawn["grad_norm"] == ["sets"] == drawn["val-core/shop/reward/mean@1"]
    assert training.columns(seen.arms)[:2] == ["reward", "eval/reward"]
    (chosen,) = training.groups(seen.arms, ["actor/entropy"])
    assert [curve.arms for curve in chosen.curves] == [["echo"]]
    assert "entropy is actor/entropy of echo" in " ".join(overview.report(seen).notes)
    assert "actor/entropy" in export.to_csv(seen.arms, [], seen.compared)


def test_what_is_by_tool_or_by_turn_is_folded_and_returns_are_no_turns(tmp_path):
    steps = {1: 0.1, 2: 0.2}
    names = (
        "reward",
        "eval_echo/nll",
        "eval_echo/tool/move/nll",
        "wm/env/success/turns_1",
        "eval_held_out_wm/env/success",
    )
    write_state(tmp_path / "run", dict.fromkeys((*names, "critic/returns/mean", "wm/env/turns"), steps))
    found = {
        one.title: (one.unit, group.folded) for group in training.groups(view(tmp_path).arms) for one in group.curves
    }
    assert [title for title, (_, folded) in found.items() if not folded] == [
        "reward", "eval/echo/nll", "eval/held_out_wm/env/success"
    ]  # fmt: skip
    assert [found[title][0] for title in ("critic/returns/mean", "wm/env/turns")] == ["", "turns"]


def test_a_page_of_three_runs_is_short_and_has_its_contents(tmp_path):
    steps = {step: step / 9 for step in range(1, 9)}
    names = ["reward", "echo/nll", "entropy", "grad_norm", "loss", "tools/call_frequency", "step_time", "kl", "a", "b"]
    names += ["eval/loss", *(f"eval/{n}/reward" for n in range(9))]
    for name in ("one", "two", "three"):
        write_state(tmp_path / name, dict.fromkeys(names, steps) | {"echo/coeff": dict.fromkeys(steps, 0.05)})
    html = render(overview.report(view(tmp_path)))
    before, _, after = html.partition("<details")
    assert before.count("<figure") == 8
    assert after.count("<figure") == len(names) - 8  # the constant coefficient is in none
    links = re.findall(r'<a href="#([\w-]+)">', html)
    assert len(links) > 3
    assert sorted(links) == sorted(re.findall(r'<(?:h2|summary) id="([\w-]+)"', html))


def test_a_reward_that_never_moves_is_drawn_and_a_constant_coefficient_is_not(tmp_path):
    flat = dict.fromkeys(range(1, 4), 0.0)
    write_state(tmp_path / "run", {"reward": flat, "echo/coeff": flat, "entropy": {1: 0.5, 2: 0.4}})
    write_state(tmp_path / "other", {"reward": flat, "echo/coeff": dict.fromkeys(flat, 0.5)})
    assert [curve.title for group in training.groups(view(tmp_path).arms) for curve in group.curves] == [
        "reward",
        "entropy",
    ]


def test_the_baseline_is_a_run_and_not_a_model_that_was_only_evaluated(tmp_path):
    evaluation(tmp_path / "evals" / "base", subject="Qwen/Qwen3")
    write_state(tmp_path / "runs" / "plain_seed0", points(), checkpoint=3)
    evaluation(tmp_path / "evals" / "plain", subject=f"{tmp_path}/runs/plain_seed0/checkpoint-3")
    assert view(tmp_path / "evals", tmp_path / "runs").compared.against == "plain"
    assert view(tmp_path / "evals" / "base").compared.against == "Qwen3"  # where there is nothing else


def test_runs_without_a_log_are_named(tmp_path):
    write_state(tmp_path / "with", points(), checkpoint=3)
    (tmp_path / "without" / "checkpoint-5").mkdir(parents=True)
    for folder in ("with/model", "saved", "saved/model"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "training_args.bin").write_bytes(b"")
    (tmp_path / "verl" / "global_step_5").mkdir(parents=True)
    (tmp_path / "verl" / "latest_checkpointed_iteration.txt").write_text("5")
    notes = [note for note in view(tmp_path).notes if "no log of a trainer" in note]
    assert [note.partition(":")[0] for note in notes] == [f"{tmp_path}/{name}" for name in ("saved", "verl", "without")]
    write_trackio(tmp_path / "mine.db", {"a": {"reward": {1: 0.5}}})  # which may be the log of any of them
    assert "no log of a trainer" not in " ".join(view(tmp_path).notes)


def test_a_named_run_without_a_log_is_a_note_beside_others_and_alone_one_line(tmp_path):
    write_state(tmp_path / "with", points(), checkpoint=3)
    (tmp_path / "trl").mkdir()
    (tmp_path / "trl" / "training_args.bin").write_bytes(b"")
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "latest_checkpointed_iteration.txt").write_text("5")
    for name, said in (
        ("trl", "a trained model, and no log of a trainer"),
        ("verl", "checkpoints of verl, and no log"),
    ):
        assert view(tmp_path / name, tmp_path / "with").notes == [
            f"{tmp_path / name}: has a trained model and no log of a trainer, and is not shown"
        ]
        with pytest.raises(UserError, match=f"{name}: {said}"):
            view(tmp_path / name)


def test_predictions_of_two_models_stand_side_by_side(tmp_path):
    evaluation(tmp_path / "one", subject="models/first")
    evaluation(tmp_path / "two", subject="models/second", exact=0.75)
    shown = overview.report(view(tmp_path))
    assert shown.comparisons[0].title == "one-step, worst: word_f1 0 (first)"
    assert dict(shown.comparisons[0].predicted) == {"first": "ok", "second": "ok"}
    titles = [card.title.partition(",")[2].partition(":")[0].strip() for card in shown.comparisons]
    assert titles == ["worst"] * 4 + ["typical"] * 3
    assert "Chosen by word_f1, of 24 predictions" in shown.comparing


def test_an_evaluation_of_a_run_has_the_colour_of_its_arm(tmp_path):
    write_state(tmp_path / "runs" / "echo_seed0", points(), checkpoint=3)
    evaluation(tmp_path / "evals" / "x", subject=f"{tmp_path}/runs/echo_seed0/checkpoint-3")
    evaluation(tmp_path / "evals" / "y", subject="Qwen/Qwen3")
    assert [one.name for one in view(tmp_path).evaluations] == ["echo", "Qwen3"]
    assert [one.name for one in view(tmp_path / "evals" / "y").evaluations] == ["Qwen3"]


def test_metrics_can_be_chosen(tmp_path):
    write_state(tmp_path / "run", {**points(), "other": {1: 1.0, 2: 2.0}})
    shown = overview.report(view(tmp_path), metrics=["oth*"])
    figures = [figure.title for section in (*shown.sections, *shown.appendix) for figure in section.figures]
    assert figures == ["other"]
    everything = overview.report(view(tmp_path))
    assert [figure.title for figure in everything.appendix[0].figures] == ["other"]


def test_many_metrics_are_bounded_and_the_rest_is_named(tmp_path):
    metrics = {f"m{number}": {1: 0.0, 2: 1.0} for number in range(300)}
    write_state(tmp_path / "run", {**metrics, "loss": {1: 0.0, 2: 1.0}})
    shown = overview.report(view(tmp_path))
    assert len(shown.appendix[0].figures) == 60
    assert "240 more metrics" in shown.notes[-1]


def test_the_largest_and_smallest_numbers_give_a_page(tmp_path):
    for seed in range(3):
        values = {1: 1.7e308, 2: -1.7e308, 3: 5e-324, 4: 0.0, 5: seed * 1e300}
        write_state(tmp_path / f"r_s{seed}", {"reward": values, "loss": {1: 1e-9, 2: 2e-9}})
    measures = [Measure(f"m{place}", value, "nats", 1) for place, value in enumerate((1e308, -1e308, 5e-324, 1e-9))]
    evaluation(tmp_path / "e", measures=measures)
    document, _ = page(tmp_path)
    assert "nan" not in document.text
    assert "inf" not in document.text.replace("information", "")


def test_a_damaged_row_does_not_cost_the_page(tmp_path):
    folder = evaluation(tmp_path / "one")
    rows = (folder / "rows.jsonl").read_text().splitlines()
    (folder / "rows.jsonl").write_text("\n".join([*rows[:8], "{broken", *rows[8:]]))
    shown = overview.report(view(tmp_path))
    assert len(shown.comparisons) == 7
    assert "rows.jsonl:9: damaged: what follows is not read." in shown.comparing


def test_demos_of_two_seeds_are_an_arm_for_each_coefficient(tmp_path):
    for seed in (0, 1):
        write_demo(tmp_path / f"demo_seed{seed}", points(seed))
    shown = view(tmp_path)
    assert [(arm.name, arm.seeds) for arm in shown.arms] == [("demo coeff_0", 2), ("demo coeff_1", 2)]
