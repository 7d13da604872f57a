"""A world of one's own whose rows are seeds: there is no `dataset_rows` beside it."""


class Seeded:
    def reset(self, seed: int) -> None: ...
