"""The perturbations: each as an instruction for a world model, and as a rule on a real world's text.

| name | drawn for | what the agent sees | the expert still succeeds |
|---|---|---|---|
| error | a call | an error in the place of the call, which is not carried out | if it may try again |
| partial | a call | some items of a list are errors; or calls after a turn's first fail | if it may try again |
| paginate | an episode | the first page; the same call again shows the next one | yes |
| withhold | an episode | nothing of an answer | no |
| tease | an episode | what an answer is about, and not the answer | no |
| latency | a call | how long the call took | yes |
| style | an episode | the same text in another form | yes |

The kinds are Qwen-AgentWorld's (section 6.1.2), the texts and rules are ours. A rule never raises, takes time in proportion to
the text, and gives the same for the same draw.
"""

from collections.abc import Mapping

from wm_plugin.worlds.wrappers.control.answers import Tease, Withhold
from wm_plugin.worlds.wrappers.control.base import Perturbation
from wm_plugin.worlds.wrappers.control.failures import Error, Partial
from wm_plugin.worlds.wrappers.control.results import Latency, Paginate, Style

AnyPerturbation = Error | Partial | Paginate | Withhold | Tease | Latency | Style
PERTURBATIONS: Mapping[str, type[Perturbation]] = {
    "error": Error,
    "partial": Partial,
    "paginate": Paginate,
    "withhold": Withhold,
    "tease": Tease,
    "latency": Latency,
    "style": Style,
}
