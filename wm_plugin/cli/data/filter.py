"""`wm data filter`."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from wm_plugin.cli.support import progress
from wm_plugin.data.filter import Filter, left_out
from wm_plugin.data.outputs import check_apart
from wm_plugin.data.readers import read
from wm_plugin.data.transitions import pool_of
from wm_plugin.data.values import changed
from wm_plugin.data.write import check_outputs, write
from wm_plugin.errors import UserError, shown
from wm_plugin.options import names


def filter(
    source: str,
    /,
    *,
    out: Path,
    method: Annotated[Literal["rwml", "word2world", "agentworld"] | None, Parameter(name="--for")] = None,
    filters: str | None = None,
    domain: str | None = None,
    failure: tuple[str, ...] = (),
    invalid: tuple[str, ...] = (),
    mask_values: bool = False,
    profile: bool = False,
    pool: tuple[str, ...] = (),
    seed: int = 0,
) -> dict[str, Any]:
    """Leave out what is not worth learning.

    The filters, in their order: `empty_actions` takes turns without an action, `retries` turns of retry cycles, `no_change`
    turns after which the screen looks as before, `invalid_actions` turns with an invalid action, `environment_failures`
    trajectories in which the world failed, `too_short` those with fewer than two turns that were observed, `undeclared_tools`
    those that call a tool which is not declared, and `duplicates` those that were there before.

    As JSON: counts of what is left, as from convert; `taken`, what each filter took; `without_domain`, trajectories whose domain
    is unknown, which the filters of some domains left alone; `pools`; with --mask-values `masked` results; with --profile
    changed `profiles`.

    Args:
        source: Trajectories, or any format that convert reads.
        out: X.jsonl or X.parquet.
        method: A paper's filters (default: rwml, all of them); word2world has none, since failed actions are what it learns.
        filters: Or these, separated by commas, whatever the domain.
        domain: The domain of the source: mcp, search, terminal, swe, android, web or os (default: what each row says).
        failure: A regular expression for observations that show a failed world (repeatable).
        invalid: A regular expression for observations that answer an invalid action (repeatable).
        mask_values: Replace tools' JSON results by their schemas, after the filters.
        profile: Move what a user knows of themselves into the context (tau2).
        pool: FILE=SHARE: write the trajectories of this share of the tasks to a file, too. No task is in two pools, whatever
            the sources (repeatable, for example for each training stage).
        seed: Seed of which task goes into which pool.
    """
    if filters and method:
        raise UserError("--for and --filters both choose the filters: leave one of them out")
    shares = _pools(pool)
    for name in shares:
        check_outputs(Path(name), None, [source])
    check_apart([], {"--out": out, **{f"--pool {name}": Path(name) for name in shares}})

    chosen_names = names(filters) if filters else None
    used = None if filters else method or "rwml"
    without = left_out(used) if used else ()
    chosen = Filter(chosen_names, without=without, domain=domain, failures=failure, invalid=invalid)
    counts = ({"masked": 0} if mask_values else {}) | ({"profiles": 0} if profile else {})
    kept = changed(chosen(progress(read(source), "trajectories")), mask=mask_values, profile=profile, counts=counts)
    result: dict[str, Any] = {
        **write(kept, out, sources=[source]).as_dict(),
        "method": used,
        "taken": {name: chosen.taken[name] for name in chosen.names},
    }
    if not filters:
        result["without_domain"] = chosen.without_domain
    if shares:

        def write_pool(name: str) -> int:
            rows = (one for one in read(out) if pool_of(one, shares, seed) == name)
            return write(rows, name, sources=[source]).trajectories

        result["pools"] = {name: write_pool(name) for name in shares}
    if result.get("without_domain"):
        result["notes"] = [
            f"{chosen.without_domain} trajectories name no domain, so environment_failures and no_change (screens) and "
            "undeclared_tools (mcp and swe) left them alone; name it with --domain"
        ]
    return {**result, **counts, "out": str(out)}


def _pools(texts: tuple[str, ...]) -> dict[str, float]:
    """File -> share, of `--pool`."""
    shares: dict[str, float] = {}
    for text in texts:
        name, _, share = text.rpartition("=")
        try:
            shares[name] = float(share)
        except ValueError:
            name = ""
        if not name or not 0 < shares[name] <= 1:
            raise UserError(f"--pool {shown(text)}: write FILE=SHARE with a share of the tasks, e.g. sft.jsonl=0.3")
    if len(shares) < len(texts):
        raise UserError("--pool names a file twice")
    if sum(shares.values()) > 1 + 1e-9:
        raise UserError(f"the shares of --pool are {sum(shares.values()):g} in all; they can be 1 at most")
    return shares
