"""An objective that selects nothing: when something is said of it, and what."""

import pickle
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.examples import examples
from wm_plugin import EchoConfig
from wm_plugin.errors import UserError
from wm_plugin.objectives.empty_batches import CAUSES, EmptyBatchMonitor, Tally
from wm_plugin.objectives.weigh import weigh
from wm_plugin.tokens.spans import Ending, Origin, Span

CONTENT = Origin(Span(0, 8, "tool", "look", True))
SCAFFOLD = Origin(Span(8, 11, "tool", "look", False))
REPLY = Origin(Span(11, 13, "user", None, True))


def tallied(config: EchoConfig, *origins: Origin, dropped: str | None = None) -> Tally:
    """What became of the tokens of a rollout, two of which are in none of its spans."""
    tally = Tally(environment=2 + sum(origin.span.end - origin.span.start for origin in origins))
    weigh(origins, config, dropped=dropped, tally=tally)
    return tally


def spoken(config: EchoConfig, tally: Tally, **counts: int) -> str:
    monitor = EmptyBatchMonitor(config)
    monitor.batches = 1
    return monitor.report(tally, **{"environment": tally.environment, "selected": tally.selected, **counts})


HEAD = "the world-model objective had no token to train on in an optimizer batch: "
FAILED = "failures that the host made of calls of 'look' (no such tool, unreadable arguments, an exception)"
CASES = {
    "roles": (
        EchoConfig(1.0, roles=["system"]),
        [CONTENT, SCAFFOLD, REPLY],
        "roles ['system'] leaves out 13 of 15 tokens, which are of 'tool', 'user'",
    ),
    "tools": (
        EchoConfig(1.0, tools=["move"]),
        [CONTENT, REPLY],
        "tools ['move'] leaves out 10 of 12 tokens, which are of 'look', 'user'",
    ),
    "failures": (
        EchoConfig(1.0),
        [CONTENT._replace(failed=True), SCAFFOLD],
        f"include_errors false leaves out 8 of 13 tokens: {FAILED}",
    ),
    "cut completions": (
        EchoConfig(1.0, include_truncated=False),
        [CONTENT._replace(ending=Ending.TRUNCATED)],
        "include_truncated false leaves out 8 of 10 tokens, of completions cut at the length limit",
    ),
    "a function": (
        EchoConfig(1.0, select=lambda *_: False),
        [CONTENT],
        "select leaves out 8 of 10 tokens, which are of 'look'",
    ),
    "scaffold alone": (
        EchoConfig(1.0),
        [SCAFFOLD],
        "env_spans leaves out 2 of 5 tokens, which are in none of its spans; "
        "content_only true leaves out 3 of 5 tokens of chat-template scaffold",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_causes_are_named_in_their_order(case):
    config, origins, expected = CASES[case]
    text = spoken(config, tallied(config, *origins))
    assert text.startswith(HEAD + expected)
    assert "\n" not in text


def test_groups_of_equal_rewards_are_a_cause_too():
    config = EchoConfig(1.0, zero_variance_groups="drop")
    assert "zero_variance_groups drop leaves out 8 of 10 tokens" in spoken(
        config, tallied(config, CONTENT, dropped="zero_variance_groups")
    )


def test_causes_outside_the_spans():
    assert "min_token_nll 9.0 leaves out all 8 tokens that were selected" in spoken(
        EchoConfig(1.0, min_token_nll=9.0), Tally(environment=8, selected=8)
    )
    text = spoken(EchoConfig(1.0), Tally(masked=3))
    assert "the rollouts have no environment tokens, as if no tool had been called" in text
    assert text.endswith("the host's truncation masking takes away 3 completions whole")


def test_tokens_that_another_batch_of_the_rollouts_selected_are_among_all():
    config = EchoConfig(1.0, roles=["tool"])
    assert spoken(config, tallied(config, CONTENT, REPLY), selected=0) == HEAD + (
        "roles ['tool'] leaves out 2 of 12 tokens, which are of 'user'; "
        "env_spans leaves out 2 of 12 tokens, which are in none of its spans"
    )


def test_tallies_are_summed():
    some, others = Tally(5, 3, Counter({("tools", "a"): 2}), 1, 4), Tally(7, 1, Counter({("tools", "a"): 6}), 2, 5)
    assert Tally.sum([some, others]) == Tally(12, 4, Counter({("tools", "a"): 8}), 3, 9)


def test_results_that_the_host_drops_are_not_taken_for_calls_that_nobody_made():
    monitor = EmptyBatchMonitor(EchoConfig(1.0), limit="max_completion_length")
    assert after(monitor) is True
    text = monitor.report(Tally.sum([Tally(unanswered=2), Tally()]), environment=0, selected=0)
    assert "tools were called, but no result is in the rollouts" in text
    assert text.endswith("raise max_completion_length")
    assert "as if no tool" not in text


def test_a_batch_without_advantages_either_trained_nothing():
    monitor = EmptyBatchMonitor(EchoConfig(1.0))
    after(monitor)
    text = monitor.report(Tally(), environment=0, selected=0, policy_silent=True)
    assert text.endswith("; its advantages were all 0 too, so that it trained nothing")


@pytest.mark.parametrize(
    ("counts", "due"), [([], False), ([0, 0], True), ([5, 0], False), ([0, 5], False), ([0, 0, 0], False)]
)
def test_a_run_that_ends_early_is_reported_at_its_end(counts, due):
    monitor = EmptyBatchMonitor(EchoConfig(0.5, silent_batches=3))
    for counted in counts:
        if after(monitor, counted, environment=0):
            speak(monitor)
    assert monitor.at_end() == due


def test_a_config_knows_whether_somebody_wrote_its_coefficient():
    default = EchoConfig(roles=["tool"])
    assert not default.coeff_given
    assert not pickle.loads(pickle.dumps(default)).coeff_given
    assert all(config.coeff_given for config in (EchoConfig(0.0), EchoConfig(coeff=0.0), EchoConfig(alpha=0.0)))
    assert default == EchoConfig(0.0, roles=["tool"])


def test_every_field_that_leaves_tokens_out_has_a_cause():
    """A field that is new to the selection has a sentence here."""
    fields = set(EchoConfig.model_fields)
    assert set(CAUSES) - fields == {"env_spans"}


def after(monitor: EmptyBatchMonitor, counted: int = 0, environment: int = 9, coeff: float = 0.5) -> bool:
    return monitor.record(coeff=coeff, environment=environment, counted=counted)


def speak(monitor: EmptyBatchMonitor) -> str:
    return monitor.report(Tally(), environment=9, selected=0)


def test_rollouts_whose_tokens_are_left_out_are_reported_at_once_and_once():
    monitor = EmptyBatchMonitor(EchoConfig(0.5))
    assert after(monitor)
    assert speak(monitor).startswith(HEAD)
    assert not any(after(monitor) for _ in range(9))


def test_rollouts_without_environment_tokens_are_reported_after_some_batches():
    monitor = EmptyBatchMonitor(EchoConfig(0.5, silent_batches=2))
    counts = [0, 5, 0, 0, 0]
    due = []
    for counted in counts:
        due.append(after(monitor, counted, environment=0))
        if due[-1]:
            assert "in 2 optimizer batches in a row" in speak(monitor)
    assert due == [False, False, False, True, False]


def test_a_coefficient_of_0_expects_nothing():
    monitor = EmptyBatchMonitor(EchoConfig(0.5, silent_batches=1, on_silence="stop"))
    assert not any(after(monitor, coeff=0.0) for _ in range(5))


def test_a_run_is_stopped_if_asked():
    monitor = EmptyBatchMonitor(EchoConfig(0.5, silent_batches=3, on_silence="stop"))
    assert after(monitor)
    assert speak(monitor)
    assert not after(monitor)
    assert not after(monitor, counted=1)
    assert [after(monitor) for _ in range(3)] == [False, False, True]
    with pytest.raises(UserError, match=r"in 3 optimizer batches in a row: .* \(on_silence is stop\)") as error:
        speak(monitor)
    assert "\n" not in str(error.value)


NOTHING = {
    "tools": ({"tools": []}, "tools is empty"),
    "multipliers": ({"tools": {"move": 0, "look": 0.0}}, "tools gives every tool that it names the multiplier 0"),
    "roles": ({"roles": []}, "roles is empty"),
}


@pytest.mark.parametrize("case", NOTHING)
def test_a_config_that_can_select_nothing_is_reported_before_the_first_batch(case):
    fields, message = NOTHING[case]
    monitor = EmptyBatchMonitor(EchoConfig(0.5, **fields))
    assert message in monitor.warning
    assert not after(monitor)  # it has been said
    with pytest.raises(UserError, match=message):
        EmptyBatchMonitor(EchoConfig(0.5, **fields, on_silence="stop"))
    assert EmptyBatchMonitor(EchoConfig(0.0, **fields, on_silence="stop")).warning is None
    assert EmptyBatchMonitor(EchoConfig(0.5, tools={"move": 0, "look": 1})).warning is None


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(st.text(max_size=500), st.text(max_size=500) | st.none(), st.booleans()), max_size=40))
def test_a_message_is_short_whatever_names_a_policy_invents(drawn):
    config = EchoConfig(1.0, tools=["move"], roles=["tool", "user"])
    origins = [Origin(Span(n, n + 1, *names[:2], names[2])) for n, names in enumerate(drawn)]
    tally = tallied(config, *origins)
    assert tally.environment == 2 + tally.selected + tally.left_out.total()
    text = spoken(config, Tally.sum([tally, Tally()]), selected=0)
    assert "\n" not in text
    assert len(text) < 2000
