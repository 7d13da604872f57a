"""The pipelines that come with the package, in all that they can be set to."""

WORLDS = {name: ["world=alfworld", "world=tau2"] for name in ("baselines", "lwm_warm_up", "rwml_rl")}
WORLDS["early_experience"] = ["world=alfworld", "world=tau2", "world=scienceworld"]
WORLDS["consistency_tiny"] = [f"which={w}_{s}" for w in ("textworld", "scienceworld") for s in ("tiny", "135m")]
PARTS = {
    "rwml_rl": ["table=1", "table=4"],
    "rwml_rl_tiny": ["table=1", "table=4"],
    "lwm_warm_up": ["", "reward=rubric"],
    "lwm_warm_up_tiny": ["", "reward=rubric"],
    "rwml_tiny": ["", "world=textworld reward=embeddings embedding_model=m algorithm=gspo arms=start,wm_sft,rwml"],
    "sql_135m": ["", "size=quick"],
    "echo_alpha_tiny": ["", "environment=--environment,tiny_worlds:MirrorEnvironment", "arms=rl,then_rl"],
    # pairs: a user's own
    "word2world": ["study=scaling", "study=mixture pairs=/dev/null pairs_test=/dev/null", "study=agents"],
    "word2world_tiny": ["study=scaling", "study=mixture", "study=agents"],
}


def variants(name: str) -> list[str]:
    """The settings, for `--set`, of each variant of a pipeline."""
    return [f"{world} {part}".strip() for world in WORLDS.get(name, [""]) for part in PARTS.get(name, [""])]


def hosts(name: str) -> tuple[str, ...]:
    return ("trl",) if name in ("consistency_tiny", "verify_shop_tiny") else ("trl", "verl")
