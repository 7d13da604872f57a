"""`wm lab audit`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wm_plugin.cli.numbers import Count
from wm_plugin.cli.output import prints, table
from wm_plugin.cli.support import quiet, search_here
from wm_plugin.data.outputs import check_apart, check_out, files_in, write_text
from wm_plugin.data.scores import read_arguments
from wm_plugin.data.transitions import transitions_in
from wm_plugin.errors import UserError
from wm_plugin.lab.evaluation import audit as audits
from wm_plugin.rewards.make import make


def show(result: dict[str, Any]) -> None:
    """Print tables, what their cells mean, and the verdict last, where it is read."""
    rows = [
        {
            "group": row["group"],
            "attack": row["name"],
            "above wrong": "–" if row["above_wrong"] is None else f"{row['above_wrong']:.0%}",
            "above right": f"{row['above_right']:.0%}",
            "mean score": f"{row['score']:.3g}",
            "pays": "yes" if row["name"] in result["pays"] else "",
        }
        for row in result["attacks"]
    ]
    table(rows, f"{result['reward']} on {result['pairs']} transitions")
    print(audits.CELLS, end="\n\n")
    changes = [
        {
            "one thing changed": row["says"],
            "is": "wrong" if row["wrong"] else "right",
            "tried": row["cases"],
            "paid in full": f"{row['paid']:.0%}" if row["cases"] else "",
            "distance": "{1:.2f} ({0:.2f} to {2:.2f})".format(*row["distances"]) if row["distances"] else "",
        }
        for row in result["blind_spots"]["changes"]
    ]
    table(changes, "blind spots")
    print(*_left_out(result["left_out"]), "", result["verdict"], *result["blind_spots"]["verdict"], sep="\n")


@prints(show)
def audit(
    *,
    reward: str,
    data: str,
    reward_args: str = "{}",
    attacks: str | None = None,
    pairs: str | None = None,
    limit: Count = 100,
    out: str | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Which texts earn a reward without being a right prediction, and which wrong predictions does it not notice?

    Attacks a reward on transitions of yours, and says in words what it found.

    1. Attacks: praise, words for a judge, forged verdicts and tags, copies, generic descriptions, stuffing, tricks with
       characters. Each is compared with an honest wrong prediction (another output of the same tool) and with the right one.
    2. Blind spots: the right prediction with one thing changed (a number, a `not`, a name, an emoji, the end of a long text,
       ...), and reworded so that it is still right. Of a reward with an embedding (embedding, rwml) it also gives the
       distances, and the threshold that separates right from wrong, or that none does.

    As JSON, `beats` has the attacks that score above an honest wrong prediction, with the share of transitions in which they do.

    ```
    wm lab audit --reward rouge --reward-args '{"step": 0.2}' --data transitions.jsonl --out audit.md
    wm lab audit --reward rwml --reward-args '{"model": "Qwen/Qwen3-Embedding-8B", "base_url": "http://localhost:8001/v1"}' \\
        --data transitions.jsonl --pairs pairs.jsonl
    ```

    A line of --pairs: {"prediction": "You open drawer 2.", "observation": "Drawer 2 is open.", "right": true}

    Args:
        reward: exact, rwml, rules, ..., or package.module:NAME.
        data: Transitions, or trajectories of any format.
        reward_args: The reward's arguments as JSON.
        attacks: A file of your own attacks, written like wm_plugin/lab/evaluation/attacks.yaml.
        pairs: JSON lines of predictions that are right or wrong: the threshold that separates them, for an embedding.
        limit: Most transitions, drawn at random.
        out: X.md, for the verdict and the tables as Markdown.
        seed: Seed of the draw, and of the changes.
    """
    from wm_plugin.lab.evaluation import blind_spots  # imports torch

    kwargs = read_arguments(reward_args, "--reward-args")
    path = Path(out) if out else None
    if path:
        check_out(path, (".md",))
        check_apart([data, attacks, pairs, *files_in(kwargs)], {"--out": path})
    chosen = audits.load_attacks(attacks)
    own = blind_spots.load_pairs(pairs) if pairs else []
    drawn, left = audits.make_pairs(transitions_in(data), limit=limit, seed=seed)
    quiet()
    search_here()
    made = make({"path": reward, "kwargs": kwargs}, field="--reward")
    audits.leave_out_failures(made)
    if own and blind_spots.embedding_of(made) is None:
        raise UserError(f"--pairs: {reward} has no embedding, whose threshold they would give; leave it out")
    result = audits.audit(made, drawn, chosen, left_out=left)
    spots = blind_spots.blind_spots(made, drawn, own=own, seed=seed)
    if path:
        left_out = [f"- {line}" for line in _left_out(result.left_out)]
        tables = (audits.markdown({reward: result}), audits.CELLS, "\n".join(left_out), blind_spots.markdown(spots))
        write_text(path, "\n\n".join(part.strip() for part in (result.verdict(), *tables) if part) + "\n")
    return {
        "reward": reward,
        **result.as_dict(),
        "blind_spots": spots.as_dict(),
        **({"out": out} if out else {}),
    }


def _left_out(counts: Mapping[str, int]) -> list[str]:
    return [f"left out: {count} ({reason})" for reason, count in counts.items()]
