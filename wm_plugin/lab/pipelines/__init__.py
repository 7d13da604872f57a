"""Pipelines: a YAML file of commands with their inputs and outputs (docs/pipelines.md); what is not done is run."""

from wm_plugin.lab.pipelines.expand import Step, expand
from wm_plugin.lab.pipelines.file import Pipeline, read

__all__ = ["Pipeline", "Step", "expand", "read"]
