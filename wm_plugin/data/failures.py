"""What went wrong in a trajectory, by its domain (Qwen-AgentWorld, section 3.1.2).

A failure of the machinery around a screen (a CAPTCHA, an HTTP error, a state that was not captured) breaks the tie between action
and observation, so that trajectories of screens are not worth learning then. In a terminal the same words are the world's answer:
`curl: (7) Connection refused` is what its model must foresee. The paper names these kinds, but no patterns.
"""

import re
from collections.abc import Sequence

from wm_plugin.data.schema import Action, Observation, Trajectory, Turn

DOMAINS = ("mcp", "search", "terminal", "swe", "android", "web", "os")
SCREENS = ("android", "web", "os")
# The filters that the paper applies to some domains alone.
DOMAINS_OF = {"environment_failures": SCREENS, "no_change": SCREENS, "undeclared_tools": ("mcp", "swe")}
_FORMATS = {"sweagent": "swe"}  # formats whose trajectories are of one domain

# Observations of a broken environment. Users add patterns with `failures`, for every domain.
FAILURES = (
    r"(?<!protected by )\b(re|h)?captcha\b",  # not the line at the foot of a form
    r"\b(verify|confirm|prove)( that)? you('re| are) (a )?(human|not a robot)",
    r"\bunusual traffic\b",
    r"\bHTTP(/[0-9.]{1,3})?( error| status)?:? [45][0-9]{2}\b",
    r"\b400 bad request|\b401 unauthorized|\b403 forbidden|\b404 (page )?not found|\b429 too many requests",
    r"\b500 internal server error|\b50[234] (bad gateway|service (temporarily )?unavailable|gateway time-?out)",
    r"\bERR_[A-Z]{2,20}_[A-Z_]{2,40}|\brefused to connect\b|\bthis (site|page) can.?t be reached",
    r"\b(state|snapshot|screenshot|hierarchy|accessibility tree)( file)? (is |was |could )?"
    r"(missing|not (be )?(found|read|loaded|captured|available))",
    r"\b(failed|unable) to (capture|dump|get|load|read|take)( the| a)?( \w{1,20})? "
    r"(state|snapshot|screenshot|hierarchy|tree)\b",
    r"\bno such file or directory[^\n]{0,120}(state|snapshot|screenshot|hierarchy)",
    r"\b(sandbox|emulator|browser|container) (died|crashed)",
)

_FAILED = re.compile(
    r"\b(error|exception|traceback|fail(ed|ure)?|timed? ?out|try again|busy|unavailable)\b", re.IGNORECASE
)
# Complaints about an action of a wrong form, or of an unknown tool.
_GARBAGE = re.compile(
    r"\b(invalid|malformed|bad|incomplete) (json\b|(tool|function)[ _]calls?\b"
    r"|(arguments?|parameters?|params|input) (for|to|of|in)\b)"
    r"|\b(not|no) valid json\b|\bjson ?decode ?error\b"
    r"|\b(could not|couldn't|cannot|can't|unable to|failed to) (parse|decode|understand)\b"
    r"[^\n]{0,40}\b(json|arguments?|parameters?|tool|function|action|response|output)\b"
    r"|\b(unknown|no such|unrecognized|undefined) (tool|function|action)\b"
    r"|\b(tool|function) \S{1,80} (was )?(not found|does not exist|is not (available|defined|a valid))"
    r"|\bmissing( [0-9]{1,3})?( required)?( positional| keyword-only)? (argument|parameter|property|field)s?\b"
    r"|\brequired (argument|parameter|property|field)s?\b|\bunexpected keyword argument\b"
    r"|\bvalidation errors? (for|in)\b|\binputvalidationerror\b|\bmcp error -3260[0-2]\b"
    r"|\byour (last |previous )?(output|response|reply|action|message) (was not|is not|could not|did not|has no)\b"
    r"|\bno (valid )?(action|tool call|function call|code block) (was )?found\b",
    re.IGNORECASE,
)
_UNKNOWN = re.compile(r"\b(tool|function|action)\b", re.IGNORECASE)
_BEGINNING = 300  # characters of an observation: a complaint comes first


def domain_of(trajectory: Trajectory) -> str:
    """Return the domain that a trajectory's metadata or its source name; empty if neither does. `bench/web` is web."""
    named = trajectory.metadata.get("domain")
    domain = named.rpartition("/")[2].strip().lower() if isinstance(named, str) else ""
    if domain in DOMAINS:
        return domain
    return _FORMATS.get(trajectory.source.format, "") if trajectory.source else ""


def retried(turn: Turn, after: Turn | None) -> bool:
    """Tell whether a turn is the first part of a retry cycle: a garbage action, its error, and another try, corrected or not.

    So is an action that failed and was repeated as it was, to fail in the same words. An action that a working environment
    answered with an error (a host that refused, a missing file) is not, and stays to be learnt.
    """
    if after is None or turn.actor != after.actor or after.action.empty or not turn.observations:
        return False
    if _act(turn) == _act(after) and _texts(turn) == _texts(after) and all(map(_failed, turn.observations)):
        return True
    return _is_garbage(turn) and _is_another_try(turn, after.action)


def _is_garbage(turn: Turn) -> bool:
    """Tell whether each observation says that the action has no valid form, and so no effect."""
    unread = any(isinstance(call.arguments, str) and call.arguments for call in turn.action.calls)
    return all(_complains(one) or (unread and _failed(one)) for one in turn.observations)


def _is_another_try(turn: Turn, action: Action) -> bool:
    names = {call.name for call in turn.action.calls}
    if not names or not action.calls or names & {call.name for call in action.calls}:
        return True
    return any(_names_tool(observation) for observation in turn.observations)  # the name was wrong


def _names_tool(observation: Observation) -> bool:
    complaint = _GARBAGE.search(observation.text[:_BEGINNING])
    return complaint is not None and _UNKNOWN.search(complaint[0]) is not None


def _complains(observation: Observation) -> bool:
    beginning = observation.text[:_BEGINNING]
    return "Traceback (" not in beginning and _GARBAGE.search(beginning) is not None


def _failed(observation: Observation) -> bool:
    return observation.error or _FAILED.search(observation.text) is not None


def _act(turn: Turn) -> object:
    return turn.action.text, [(call.name, call.arguments) for call in turn.action.calls]


def _texts(turn: Turn) -> Sequence[str]:
    return [observation.text for observation in turn.observations]
