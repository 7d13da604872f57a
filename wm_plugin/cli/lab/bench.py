"""`wm lab bench`."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from cyclopts import Group, Parameter

from wm_plugin.cli import measures
from wm_plugin.cli.flags import ModelFlags
from wm_plugin.cli.numbers import Count, Names
from wm_plugin.cli.output import prints
from wm_plugin.client.answers import Answer, Answers, ServerModel
from wm_plugin.errors import UserError
from wm_plugin.options import Number, Options, option

_PROMPTS = "mcp"  # of trajectories


@Parameter(name="*", group=Group("Model", sort_key=1))
class Model(ModelFlags):
    """The world model."""

    predictions: str | None = option(
        "Or the model's outputs: a file of rows of the benchmark with `gen`.", default=None
    )
    temperature: Number | None = option("Sampling temperature (default: 0.6, as published).", default=None, ge=0)  # type: ignore[assignment]


@Parameter(name="*", group=Group("Judges", sort_key=2))
class Judges(Options):
    """Who judges, and how."""

    judge: tuple[str, ...] = option("NAME@URL of a judge and its server (repeatable).", default=())
    judge_key_env: tuple[str, ...] = option(
        "The variable with their key; repeat it for one of each judge.", default=("OPENAI_API_KEY",)
    )
    judge_temperature: Number | None = option("Default: 0, and 0.6 with --published.", default=None, ge=0)
    published: str | None = option("Ask as the evaluator in this checkout does.", default=None)
    turing: bool = option("Also let judges tell predictions from real observations.", default=False)
    turing_prompt: tuple[str, ...] = option(
        "With --turing: another prompt, such as a draft of yours, to choose by how well the judge tells (Markdown; repeatable).",
        default=(),
    )


@Parameter(name="*", group=Group("Rules", sort_key=3))
class Rules(Options):
    """Checks by rules."""

    rules: bool = option("Check by rules.", default=False)
    check: tuple[str, ...] = option(
        "NAME@URL of a model whose predictions check the cases, with the first judge (repeatable).", default=()
    )
    prompts: str | None = option("Prompts for trajectories (default: mcp).", default=None)


@prints(measures.show)
def bench(
    source: str,
    /,
    *,
    model: Model = Model(max_new_tokens=32768),  # as published
    judges: Judges = Judges(),
    against: Names | None = None,
    rules: Rules = Rules(),
    limit: Count | None = None,
    seed: int = 0,
    out: measures.Out = None,
) -> dict[str, Any]:
    """Score a world model on AgentWorldBench with judges, and by rules.

    1. --judge: AgentWorldBench from its own files ({domain}_test.jsonl). Judges give five scores with the real observation in
       view. --published DIR takes the benchmark's prompts, from a checkout of github.com/QwenLM/Qwen-AgentWorld, and then gives
       its evaluator's figures beside these.
    2. --rules: checks that no judge decides, built from the same files or from any trajectories: instructions that are followed,
       failures that are reported, and what was written before.

    ```
    wm lab bench AgentWorldBench --server http://localhost:8000/v1 --server-model wm --judge gpt-5.2@https://api.openai.com/v1 \\
        --published Qwen-AgentWorld --out bench-wm
    wm lab bench rollouts.jsonl --rules --server http://localhost:8000/v1 --server-model wm --out rules-wm
    ```

    Args:
        source: AgentWorldBench's folder or a file of it; with --rules, any trajectories.
        against: Folders of this verb for other models: Spearman's correlation of the judges.
        limit: The first N rows of each domain, or N trajectories.
        seed: Seed of outputs, orders and cases.
    """
    from wm_plugin.data.prompts import load
    from wm_plugin.data.readers import read
    from wm_plugin.lab.evaluation import bench, bench_rows, published
    from wm_plugin.lab.evaluation import rules as checks
    from wm_plugin.lab.evaluation.measures import Evaluation, read_result

    model.check({"--predictions": model.predictions})
    _check(model, judges, rules, against)
    is_bench = bench_rows.is_bench(source)
    if rules.prompts and not (rules.rules and not is_bench):
        raise UserError(
            "--prompts has no effect: it is for the rules of trajectories, and rows of the benchmark have their own"
        )
    model = model.replace(temperature=0.6 if model.temperature is None else model.temperature)
    evaluator = published.read(judges.published) if judges.published else None
    rows = bench_rows.read(source, limit) if is_bench else []
    if judges.judge and not rows:
        raise UserError(f"{source}: no rows of AgentWorldBench, which --judge scores; --rules takes any trajectories")
    turing = bench.turing_prompts(judges.turing, judges.turing_prompt)
    outputs = bench_rows.read_outputs(model.predictions) if model.predictions else None
    subject = model.predictions or model.server_model or model.name
    earlier = [read_result(folder) for folder in against or ()]
    folder = measures.open_folder(out, bench.NAME, subject, source)

    def kept(name: str, asked: Any) -> Answers:
        return Answers(asked, folder and folder / f"{name}.jsonl")

    def servers(named: tuple[str, ...], flag: str) -> list[tuple[str, Any, Answers]]:
        """Their names, and who answers."""
        kind = flag.strip("-")
        return [
            (label, server, kept(f"{kind}-{bench.file_name(label)}", ServerModel(server)))
            for label, server in _servers(model, judges, named, flag)
        ]

    judging = [bench.Judge(*one) for one in servers(judges.judge, "--judge")]
    seedless = model.replace(no_seed=model.no_seed or bool(judges.published))  # the published evaluator sends none
    world_model = None if outputs else kept("answers", seedless.asked())
    table = bench.Table()
    if judges.judge:
        answers = [Answer(outputs(row)) for row in rows] if outputs else []
        if world_model:
            answers = list(world_model([row.conversation() for row in rows], seed=seed))
        made = bench.outputs(rows, answers)
        table = bench.evaluate(made, judging, published=evaluator, turing=turing, seed=seed)
    if rules.rules and world_model:
        checkers = [answers for _, _, answers in servers(rules.check, "--check")]
        sessions = checks.bench_sessions(rows)
        if not rows:
            sessions = checks.sessions(islice(read(source), limit), load(rules.prompts or _PROMPTS), seed=seed)
        checks.add_to(table, sessions, world_model, checkers, judging, source, seed)
    settings: dict[str, Any] = {"seed": seed, "limit": limit}
    settings["model"] = world_model.settings if world_model else {"predictions": Path(subject).name}
    settings["judges"] = {judge.label: judge.answers.settings for judge in judging}
    settings |= {"prompts": "published" if judges.published else "ours", "turing": judges.turing}
    settings |= {"turing_prompts": list(judges.turing_prompt)} if judges.turing_prompt else {}
    settings["rules"] = rules.rules
    failures = dict(sorted(table.failures.items()))
    result = Evaluation(bench.NAME, subject, source, settings, table.measures, failures, table.notes)
    if earlier:
        result = replace(result, measures=[*result.measures, *bench.agreement([result, *earlier])])
    return measures.kept(result, table.rows, folder, ok=any(one.count for one in result.measures))


def _check(model: Model, judges: Judges, rules: Rules, against: list[str] | None) -> None:
    if not judges.judge and not rules.rules:
        raise UserError("name what to score by: --judge NAME@URL, --rules, or both")
    for flag, value, needed, other in (
        ("--published", judges.published, "--judge", judges.judge),
        ("--turing", judges.turing, "--judge", judges.judge),
        ("--turing-prompt", judges.turing_prompt, "--turing", judges.turing),
        ("--against", against, "--judge", judges.judge),
        ("--check", rules.check, "--rules", rules.rules),
    ):
        if value and not other:
            raise UserError(f"{flag} needs {needed}")
    if model.predictions and model.temperature is not None:
        raise UserError("--temperature has no effect on --predictions, which are written already; leave it out")
    if model.predictions and rules.rules:
        raise UserError("--predictions has no outputs for the cases of --rules; name a model")


def _servers(model: Model, judges: Judges, named: tuple[str, ...], flag: str) -> list[tuple[str, Any]]:
    """(name, server) of each NAME@URL."""
    from wm_plugin.lab.evaluation.published import MAX_TOKENS, TEMPERATURE

    of_judges = flag == "--judge"
    keys = list(judges.judge_key_env) if of_judges else ["OPENAI_API_KEY"]
    if len(keys) not in (1, len(named)):
        raise UserError(f"--judge-key-env is named {len(keys)} times for {len(named)} judges; name one, or one of each")
    own: dict[str, Any] = {}
    if of_judges:
        default_temperature = TEMPERATURE if judges.published else 0.0
        own["temperature"] = judges.judge_temperature if judges.judge_temperature is not None else default_temperature
        own["max_tokens"] = MAX_TOKENS
        if judges.published:
            own["seed"] = None
    servers: dict[str, Any] = {}
    for one, key in zip(named, keys * len(named) if len(keys) == 1 else keys, strict=True):
        # at the first one: a name is kept and printed, and must not have the user and the password of an address
        places = [place for scheme in ("@http://", "@https://") if (place := one.find(scheme)) > 0]
        name, url = (one[: min(places)], one[min(places) + 1 :]) if places else ("", "")
        if not name or "://" in name:
            raise UserError(f"{flag}: write NAME@URL, such as judge@http://localhost:8000/v1")
        if name in servers:
            raise UserError(f"{flag}: {name} is named twice; leave one out")
        servers[name] = model.client(url, name, api_key_env=key, **own)
    return list(servers.items())
