"""Options of simulated environments: `simulation:` in a file for `wm train`, `wm.simulation` on verl."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, JsonValue, model_validator

from wm_plugin.client.server import Server
from wm_plugin.data.hidden import parse_parts
from wm_plugin.errors import UserError
from wm_plugin.options import Names, Number, Options, Parsed, Whole, option

CLOSINGS = ("The episode is over.",)  # of our own worlds


def _parts(value: Any) -> Any:
    parse_parts(value, "hidden")
    return value


class SimulationConfig(Options):
    """Who plays the world, and what decides an episode.

    Raises:
        UserError: a value is out of its range, or does not go with another one.
    """

    example = "{url: http://localhost:8000/v1, model: NAME}"

    model: str = option(
        "The world model: its name on the server, or without url a folder, for a model in this process.",
        min_length=1,
        write="its name on the server at url, or without url a folder",
    )
    url: str | None = option("An OpenAI-compatible server, such as http://localhost:8000/v1.", default=None)
    api_key_env: str | None = option("The environment variable of the server's key.", default="OPENAI_API_KEY")
    prompts: str = option(
        "The family or file of prompts that the world model was trained with.",
        default="word2world",
        write="a family such as word2world, or the path of a file",
    )
    hidden: Annotated[Any, AfterValidator(_parts)] = option(
        "What of the state the world model is shown: some of initial-state, summary, permissions, availability, final-state; or "
        "all, or none.",
        default="all",
    )
    context_file: str | None = option(
        "Hidden contexts by hand, .yaml or .json; see wm_plugin.data.contexts.", default=None
    )
    seed: Whole = option("Seeds the prompts' variants, and asking again.", default=0, ge=0)
    temperature: Number = option("Temperature of the observations.", default=0.0, ge=0)
    max_tokens: Whole = option("New tokens of an answer.", default=1024, ge=1)
    parameters: Annotated[dict[str, JsonValue] | None, Parsed] = option(
        "Further fields of a request's body.", default=None, write="fields of a request by their names"
    )
    concurrency: Whole = option(
        "Requests at once, of a process; in this process, answers of a batch.", default=64, ge=1
    )
    timeout: Number = option("Seconds of an attempt.", default=120.0, ge=0)
    patience: Number = option(
        "Seconds of a request with all its attempts: so long it waits for a server that starts again.",
        default=300.0,
        ge=0,
    )
    repair: Whole = option(
        "How often an answer that is cut, empty, or without what it should have is asked for again.", default=1, ge=0
    )
    repair_temperature: Number = option("The temperature of asking again.", default=0.7, ge=0)
    deadline: Number | None = option("Seconds that an episode may wait for the world model in all.", default=None, ge=0)
    max_requests: Whole | None = option("Requests of an episode.", default=None, ge=1)
    max_total_tokens: Whole | None = option(
        "Tokens of an episode's requests and answers, as the server counts them.", default=None, ge=1
    )
    max_turns: Whole | None = option("Tool calls of an episode. The world's own limit counts too.", default=None, ge=1)
    success: Literal["predicted", "answer", "verifier", "rule"] = option(
        "Who decides: predicted, the world model's mark of success; answer, the real world's check of the answer (sql, docs, "
        "fictional); verifier, a judge of the whole trajectory; rule, a function of the answer.",
        default="predicted",
    )
    verifier: Any = option("The judge, as in rewards: {path: NAME, kwargs: {...}}.", default=None)
    rule: str | None = option("package.module:name(answer, columns) -> float.", default=None)
    threshold: Number = option("The least score of a verifier or rule that is a success.", default=0.5)
    closings: tuple[str, ...] = option(
        "How an observation ends that ends an episode without a success.", default=CLOSINGS, write="a list of texts"
    )
    cache: bool | str = option(
        "Keep answers at temperature 0: true, in memory; a path, in that file too.",
        default=True,
        write="true, false or a path",
    )
    control_tokens: tuple[str, ...] = option(
        "Control tokens of the model's tokenizer that are written in no usual way.", default=(), write="a list of texts"
    )
    scenarios: bool = option(
        "Whether rows are those of wm lab scenarios, which bring their own initial state.", default=False
    )
    worlds: Names | None = option(
        "Which of several environments are simulated, by their names; null: all.", default=None
    )
    evaluation: Literal["real", "simulated"] = option(
        "Where evaluations play: real, in the real world, or simulated.", default="real"
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        for name in ("verifier", "rule"):
            if (self.success == name) is (getattr(self, name) is None):
                raise UserError(f"{name} and success: {name} go together; write both or neither")
        if self.scenarios and self.success == "answer":
            raise UserError(
                "success is answer, which a world checks for its own questions, and scenarios have others; write verifier or rule"
            )
        if self.url is None and (self.max_total_tokens is not None or self.parameters):
            raise UserError("max_total_tokens and parameters are of a server; give its url, or leave them out")
        return self

    def server(self, **settings: Any) -> Server:
        """Return the world model's server."""
        names = ("model", "api_key_env", "concurrency", "timeout", "temperature", "max_tokens", "parameters")
        return Server(str(self.url), **{name: getattr(self, name) for name in names}, **settings)
