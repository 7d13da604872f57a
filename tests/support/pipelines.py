"""The pipelines that come with the package, in all that they can be set to."""

TWO_WORLDS = ("baselines", "early_experience", "lwm_warm_up", "rwml_rl")


def variants(name: str) -> list[str]:
    """The settings, for `--set`, of each variant of a pipeline."""
    worlds = ["world=alfworld", "world=tau2"] if name in TWO_WORLDS else [""]
    parts = [""]
    if name.startswith("rwml_rl"):
        parts = ["table=1", "table=4"]
    elif name.startswith("lwm_warm_up"):
        parts = ["", "reward=rubric"]
    elif name.startswith("word2world"):
        files = "" if name.endswith("_tiny") else " pairs=/dev/null pairs_test=/dev/null"  # a user's own
        parts = ["study=scaling", f"study=mixture{files}", "study=agents"]
    return [f"{world} {part}".strip() for world in worlds for part in parts]
