"""Where the tokens of a rollout came from: chat templates, spans, and a coloured view of them."""
