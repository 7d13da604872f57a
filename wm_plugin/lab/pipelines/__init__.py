"""Steps over commands, written in a YAML file: which there are, what each needs and makes, and which of them have to run.

docs/pipelines.md says how such a file is written. doit runs the steps (the extra pipelines); nothing here knows what they do.
"""

from wm_plugin.lab.pipelines.expand import Step, expand
from wm_plugin.lab.pipelines.file import Pipeline, read

__all__ = ["Pipeline", "Step", "expand", "read"]
