"""A row that cannot be used: it is rejected with a reason, and reading goes on."""


class RowError(ValueError):
    """Why a row was rejected, in one line. `kind` sums rejected rows up: a few words, without anything of the row."""

    def __init__(self, reason: str, kind: str = "malformed") -> None:
        super().__init__(reason)
        self.kind = kind
