"""A model in an evaluation's place."""

from wm_plugin.client.answers import Answer


class Said:
    """A `Model` whose answers are a function of the messages; it dies before question `last`."""

    batched = False

    def __init__(self, reply, *, temperature=0.0, last=None):
        self.settings = {"model": "said", "temperature": temperature}
        self.reply, self.last, self.questions, self.seeds = reply, last, [], []

    def ask(self, conversations, seeds, keep):
        for index, messages in enumerate(conversations):
            if len(self.questions) == self.last:
                raise KeyboardInterrupt
            self.questions.append([dict(message) for message in messages])
            self.seeds.append(seeds[index])
            answer = self.reply(messages)
            keep(index, answer if isinstance(answer, Answer) else Answer(answer))
