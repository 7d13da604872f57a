"""TRL offers every public method of an environment to the policy as a tool, but not the one that tells the hidden state."""

from trl import GRPOTrainer

from support.on_trl import config, dataset, make_model, make_tokenizer, reward
from wm_plugin.environments.wordle import WordleEnvironment


def test_the_hidden_state_is_no_tool():
    tokenizer = make_tokenizer()
    trainer = GRPOTrainer(
        model=make_model(tokenizer),
        reward_funcs=[reward],
        args=config(),
        train_dataset=dataset(),
        processing_class=tokenizer,
        environment_factory=WordleEnvironment,
    )
    assert [tool.__name__ for tool in trainer.tools] == ["act"]
