"""The error of a row that cannot be read. The row is rejected with the reason, and reading continues."""


class RowError(ValueError):
    """A row is rejected, with the reason in one line.

    Args:
        kind: the class of reason by which reports count rejected rows: a few words, without content of the row.
    """

    def __init__(self, reason: str, kind: str = "malformed") -> None:
        super().__init__(reason)
        self.kind = kind
