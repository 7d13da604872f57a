"""`wm train`: hands its arguments to the TRL entry point, `python -m wm_plugin.trl.train`."""

from wm_plugin.runtime.command import output


def train(*arguments: str) -> int:
    """Train on TRL from a config: wm train --config X.yaml (wm train --help lists the fields)."""
    if "--help-all" not in arguments:  # help and a file's mistakes need no imports of many seconds
        if {"-h", "--help"} & set(arguments):
            from wm_plugin.trl.settings import help_text

            with output():
                print(help_text(), end="")
            return 0
        import wm_plugin.trl  # without trl this says what to install  # noqa: F401
        from wm_plugin.hosting import config_file

        config_file.split([argument for argument in arguments if argument != "--json"])
    from wm_plugin.trl.train import main

    return main(list(arguments))
