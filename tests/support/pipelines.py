"""The pipelines that come with the package, in all that they can be set to."""

TWO_WORLDS = ("baselines", "early_experience", "lwm_warm_up", "rwml_rl")


def variants(name: str) -> list[str]:
    """The settings, for `--set`, of each variant of a pipeline."""
    worlds = ["world=alfworld", "world=tau2"] if name in TWO_WORLDS else [""]
    tables = ["table=1", "table=4"] if name.startswith("rwml_rl") else [""]
    return [f"{world} {table}".strip() for world in worlds for table in tables]
