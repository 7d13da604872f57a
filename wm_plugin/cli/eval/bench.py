"""`wm eval bench`: AgentWorldBench with judges, and checks by rules, of any model."""

import argparse
from typing import Any

from wm_plugin.cli.eval import model as flags
from wm_plugin.cli.eval.lines import print_rest
from wm_plugin.errors import UserError

_DESCRIPTION = """\
Scores what a world model predicts, in two ways that stand beside each other.

1. --judge: AgentWorldBench from its own files ({domain}_test.jsonl). Judges give five scores with the real observation in view.
   The prompts are ours; --published DIR takes the benchmark's, from a checkout of github.com/QwenLM/Qwen-AgentWorld, and then
   gives its evaluator's figures beside ours.
2. --rules: checks that no judge decides, built from the same files or from any trajectories: instructions that are followed,
   failures that are reported, and what was written before. The cases are ours, not the paper's.
"""
_EPILOG = """\
examples:
  wm eval bench AgentWorldBench --server http://localhost:8000/v1 --server-model wm --judge gpt-5.2@https://api.openai.com/v1 \\
    --published Qwen-AgentWorld --out bench-wm
  wm eval bench rollouts.jsonl --rules --server http://localhost:8000/v1 --server-model wm --out rules-wm
"""


PROMPTS = "mcp"  # of trajectories


def add_parser(kinds: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        "bench",
        help="AgentWorldBench with judges, and checks by rules",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source", metavar="SRC", help="AgentWorldBench's folder or a file of it; with --rules, any trajectories"
    )
    model = flags.add_arguments(parser, max_new_tokens=32768)  # as published
    model.add_argument("--predictions", metavar="FILE", help="or the model's outputs: rows of the benchmark with `gen`")
    model.add_argument(
        "--temperature", type=float, default=None, help="sampling temperature (default: 0.6, as published)"
    )
    model.add_argument(
        "--no-seed",
        action="store_true",
        help="send servers no seeds (vLLM crashes on them on a CPU); --published sends none",
    )
    judges = parser.add_argument_group("judges")
    judges.add_argument(
        "--judge", action="append", default=[], metavar="NAME@URL", help="a judge and its server; repeat it"
    )
    judges.add_argument(
        "--judge-key-env",
        action="append",
        metavar="VAR",
        help="the variable with their key (default: OPENAI_API_KEY); repeat it for one of each judge",
    )
    judges.add_argument("--judge-temperature", type=float, help="default: 0, and 0.6 with --published")
    judges.add_argument("--published", metavar="DIR", help="ask as the evaluator in this checkout does")
    judges.add_argument("--turing", action="store_true", help="also let judges tell predictions from real observations")
    judges.add_argument(
        "--turing-prompt",
        action="append",
        default=[],
        metavar="FILE",
        help="with --turing: another prompt beside ours, such as a draft of yours, to choose by how well the judge tells "
        "(Markdown; repeatable)",
    )
    judges.add_argument(
        "--against",
        nargs="+",
        default=[],
        metavar="DIR",
        help="folders of this step for other models: Spearman's correlation of the judges",
    )
    rules = parser.add_argument_group("rules")
    rules.add_argument("--rules", action="store_true", help="check by rules")
    rules.add_argument(
        "--check",
        action="append",
        default=[],
        metavar="NAME@URL",
        help="a model whose predictions check the cases, with the first judge; repeat it",
    )
    rules.add_argument("--prompts", metavar="FAMILY", help="prompts for trajectories (default: mcp)")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N rows of each domain, or N trajectories")
    parser.add_argument("--seed", type=int, default=0, help="seed of outputs, orders and cases")
    parser.add_argument("--out", metavar="DIR", help="keep answers, rows and measures there")
    parser.set_defaults(run=run, show=show)
    return parser


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The evaluation as JSON."""
    from dataclasses import replace
    from pathlib import Path

    from wm_plugin.client.answers import Answer, Answers, ServerModel
    from wm_plugin.lab.evaluation import bench, bench_judges, bench_rows, measures, published
    from wm_plugin.rewards import prompts
    from wm_plugin.rewards.verdict import TAG

    flags.check(args, {"--predictions": args.predictions})
    _check(args)
    args.temperature = 0.6 if args.temperature is None else args.temperature
    evaluator = published.read(args.published) if args.published else None
    source = _source(args.source)
    if args.prompts and not (args.rules and source == "trajectories"):
        raise UserError(
            "--prompts has no effect: it is for the rules of trajectories, and rows of the benchmark have their own"
        )
    rows = bench_rows.read(args.source, args.limit) if source == "bench" else []
    if args.judge and not rows:
        raise UserError(
            f"{args.source}: no rows of AgentWorldBench, which --judge scores; --rules takes any trajectories"
        )
    turing = [*(["turing"] if args.turing else []), *(str(Path(prompt).resolve()) for prompt in args.turing_prompt)]
    for prompt in turing:  # before anything is asked
        if f"<{TAG}>" not in prompts.load(prompt):
            raise UserError(
                f'--turing-prompt {prompt}: ask for the verdict in our form, {{"real": "first"}} in <{TAG}>'
            )
    outputs = bench_rows.read_outputs(args.predictions) if args.predictions else None
    seedless = argparse.Namespace(**{**vars(args), "no_seed": True})  # the published evaluator sends none
    subject = args.predictions or args.server_model or args.model
    earlier = [measures.read_result(folder) for folder in args.against]
    folder = measures.open_folder(args.out, bench.NAME, subject, args.source) if args.out else None

    def kept(name: str, model: Any) -> Answers:
        return Answers(model, None if folder is None else folder / f"{name}.jsonl")

    judges = [
        bench_judges.Judge(label, server, kept(f"judge-{_file_name(label)}", ServerModel(server)))
        for label, server in _servers(args, args.judge, "--judge", evaluator is not None)
    ]
    model = None if outputs else kept("answers", flags.make(seedless if args.published else args))
    table = bench.Table()
    if args.judge:
        asked = [row.conversation() for row in rows]
        answers = [Answer(outputs(row)) for row in rows] if outputs else model(asked, seed=args.seed)  # type: ignore[misc]
        made = bench.outputs(rows, answers)
        table = bench.evaluate(made, judges, published=evaluator, turing=turing, seed=args.seed)
    if args.rules:
        assert model is not None
        checkers = [
            kept(f"check-{_file_name(label)}", ServerModel(server))
            for label, server in _servers(args, args.check, "--check", False)
        ]
        _rules(args, rows, model, checkers, judges, table)
    settings: dict[str, Any] = {
        "seed": args.seed,
        "limit": args.limit,
        "model": model.settings if model else {"predictions": Path(args.predictions).name},
        "judges": {judge.label: judge.answers.settings for judge in judges},
        "prompts": "published" if args.published else "ours",
        "turing": args.turing,
        **({"turing_prompts": args.turing_prompt} if args.turing_prompt else {}),
        "rules": args.rules,
    }
    result = measures.Evaluation(
        bench.NAME, subject, args.source, settings, table.measures, dict(sorted(table.failures.items())), table.notes
    )
    if earlier:
        result = replace(result, measures=[*result.measures, *bench.agreement([result, *earlier])])
    if folder is not None:
        measures.write_rows(table.rows, folder)
        measures.write_result(result, folder)
    return {**result.as_dict(), "ok": any(one.count for one in result.measures)}


def show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    from wm_plugin.rewards.rubric import DIMENSIONS

    console = Console(highlight=False, markup=False)
    dimensions = ("score", *DIMENSIONS)
    measures = result["measures"]
    table = Table(
        *(Column(name, overflow="fold") for name in ("measure", "of")),
        *(
            Column(name, no_wrap=True, justify="right")
            for name in ("value", "95% interval", "n", "failed", "as lowest")
        ),
        title=f"{result['subject']} on {result['data']}",
    )
    for one in measures:
        if one["by"] == "domain" and one["name"].removeprefix("published ") in DIMENSIONS:
            continue  # in the second table, and in the folder
        digits = 2 if one["unit"] == "points" else 3
        low = "" if one["low"] is None else f"{one['low']:.{digits - 1}f} to {one['high']:.{digits - 1}f}"
        value, lowest = _number(one["value"], digits), _number(one["with_failed"], digits)
        table.add_row(one["name"], one["group"], value, low, f"{one['count']:,}", f"{one['failed']:,}", lowest)
    console.print(table)
    domains: dict[str, dict[str, Any]] = {one["group"]: {} for one in measures if one["name"] == "score"}
    for one in measures:
        if one["by"] == "domain" and one["name"] in dimensions:
            domains[one["group"]][one["name"]] = one["value"]
    if domains:
        table = Table("domain", *dimensions, title="failed rows left out")
        for group, values in domains.items():
            table.add_row(group, *(_number(values[name], 2) for name in dimensions))
        console.print(table)
    for one in measures:
        if one["note"]:
            console.print(f"{one['name']} {one['group']}: {one['note']}")
    print_rest(result)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _check(args: argparse.Namespace) -> None:
    if not args.judge and not args.rules:
        raise UserError("name what to score by: --judge NAME@URL, --rules, or both")
    for flag, needs in (
        ("published", "judge"),
        ("turing", "judge"),
        ("turing_prompt", "turing"),
        ("against", "judge"),
        ("check", "rules"),
    ):
        if getattr(args, flag) and not getattr(args, needs):
            raise UserError(f"--{flag.replace('_', '-')} needs --{needs}")
    if args.predictions and args.temperature is not None:
        raise UserError("--temperature has no effect on --predictions, which are written already; leave it out")
    if args.predictions and args.rules:
        raise UserError("--predictions has no outputs for the cases of --rules; name a model")


def _source(name: str) -> str:
    """`bench` for AgentWorldBench's files, else `trajectories`."""
    from pathlib import Path

    from wm_plugin.data import files
    from wm_plugin.data.readers import agentworldbench

    path = Path(name)
    if path.is_dir():
        return "bench"
    return "bench" if agentworldbench.matches(files.head(path)) else "trajectories"


def _servers(args: argparse.Namespace, named: list[str], flag: str, published: bool) -> list[tuple[str, Any]]:
    """(name, server) of each NAME@URL."""
    from wm_plugin.client.server import Server
    from wm_plugin.lab.evaluation.published import MAX_TOKENS, TEMPERATURE

    keys = (args.judge_key_env if flag == "--judge" else None) or ["OPENAI_API_KEY"]
    if len(keys) not in (1, len(named)):
        raise UserError(f"--judge-key-env is named {len(keys)} times for {len(named)} judges; name one, or one of each")
    servers: dict[str, Any] = {}
    for one, key in zip(named, keys * len(named) if len(keys) == 1 else keys, strict=True):
        # at the first one: a name is kept and printed, and must not have the user and the password of an address
        places = [place for scheme in ("@http://", "@https://") if (place := one.find(scheme)) > 0]
        name, url = (one[: min(places)], one[min(places) + 1 :]) if places else ("", "")
        if not name or "://" in name:
            raise UserError(f"{flag}: write NAME@URL, such as judge@http://localhost:8000/v1")
        if name in servers:
            raise UserError(f"{flag}: {name} is named twice; leave one out")
        default = TEMPERATURE if published else 0.0
        temperature = args.judge_temperature if args.judge_temperature is not None else default
        servers[name] = Server(
            url,
            name,
            api_key_env=key,
            concurrency=args.concurrency,
            timeout=600.0,
            temperature=temperature if flag == "--judge" else args.temperature,
            max_tokens=MAX_TOKENS if flag == "--judge" else args.max_new_tokens,
            seed=None if args.no_seed or published else "auto",
        )
    return list(servers.items())


def _rules(args: argparse.Namespace, rows: Any, model: Any, checkers: Any, judges: Any, table: Any) -> None:
    """Add the checks by rules to a table."""
    from itertools import islice

    from wm_plugin.data.prompts import load
    from wm_plugin.data.readers import read
    from wm_plugin.lab.evaluation import rule_cases, rules

    if rows:
        sessions = rules.bench_sessions(rows)
    else:
        sessions = rules.sessions(islice(read(args.source), args.limit), load(args.prompts or PROMPTS), seed=args.seed)
    cases = list(rule_cases.build(sessions, seed=args.seed))
    conversations = [case.conversation for case in cases]
    checking = [answers(conversations, seed=args.seed) for answers in checkers]
    label = rules.labels_of(judges[0]) if judges else None
    kept, left = rules.validated(cases, checking, label)
    if not kept:
        raise UserError(f"{args.source}: no turn gives a case for --rules ({len(cases)} were built, and none was kept)")
    answers = model([case.conversation for case in kept], seed=args.seed)
    scored = rules.score(kept, answers, label=label, seed=args.seed)
    table.measures += scored.measures
    table.failures += scored.failures
    table.rows += scored.rows
    without = "".join(f"; {count} left out that disagree with {reason}" for reason, count in sorted(left.items()))
    table.notes.append(f"rules: {len(kept)} cases, checked with {len(checkers)} models{without}")


def _file_name(label: str) -> str:
    """Of a judge's answers; a hash tells names apart that a file cannot."""
    import hashlib

    plain = "".join(sign if sign.isascii() and (sign.isalnum() or sign in ".-") else "-" for sign in label)[:40]
    return f"{plain}-{hashlib.sha256(label.encode(errors='replace')).hexdigest()[:8]}"
