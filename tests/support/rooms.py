"""The rooms of the package, for the tests of its structure."""

# From the bottom up: a room may use those before it. CONTRIBUTING.md has the same list with what each holds.
ROOMS = (
    "_lazy",
    "errors",
    "registry",
    "untrusted",
    "options",
    "tokens",
    "runtime",
    "client",
    "objectives",
    "rewards",
    "data",
    "hosting",
    "worlds",
    "lab",
    "trl",
    "verl",
    "cli",
)
# Neither a host's adapter nor what needs transformers; errors and registry come with any of them.
CORE = ROOMS[ROOMS.index("tokens") : ROOMS.index("trl")]
