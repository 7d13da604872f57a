"""Agent loop managers of a user's own, by their paths, and an agent loop that says `env_spans` where ours says origins."""

from typing import Any

from verl.experimental.agent_loop import AgentLoopManager
from verl.trainer.ppo.v1 import AgentLoopManagerTQ

from wm_plugin.tokens.spans import SPAN_FIELD, Origin
from wm_plugin.verl.agent_loop import WorldModelToolAgentLoop
from wm_plugin.verl.names import ORIGINS


class Derived(AgentLoopManagerTQ):
    """It runs agent loops as verl's does."""


class Legacy(AgentLoopManager):
    """It returns its rollouts."""


class Silent:
    """It has what verl asks for, and says nothing of its rollouts."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @classmethod
    def create(cls, **kwargs: Any) -> Any:
        return cls(AgentLoopManagerTQ.create(**kwargs))

    def generate_sequences(self, prompts: Any) -> None:
        print(f"a manager of the user's own sends {len(prompts)} prompts")
        self.inner.generate_sequences(prompts)


class Speaking(Silent):
    gives_env_spans = True


class Incomplete:
    def create(self) -> None: ...


class SpansLoop(WorldModelToolAgentLoop):
    """Its outputs are as of a loop that knows nothing of ours."""

    async def run(self, *args: Any, **kwargs: Any) -> Any:
        output = await super().run(*args, **kwargs)
        origins = [Origin.unpack(values) for values in output.extra_fields.pop(ORIGINS)]
        output.extra_fields[SPAN_FIELD] = [tuple(origin.span) for origin in origins]
        return output
