"""What numbers and lists among a verb's own parameters may be."""

from typing import Annotated, Any

from cyclopts import Parameter

MAX_ROWS = 1_000_000  # they are made before the first is played
Names = Annotated[list[str], Parameter(consume_multiple=True)]  # --flag A B C


def bounds(least: float, most: float | None = None) -> Parameter:
    """What a number may be, as `Annotated[int, bounds(1)]`."""

    def check(_kind: Any, value: float | None) -> None:
        if value is not None and not (least <= value and (most is None or value <= most)):
            raise ValueError(f"write a number >= {least:,}" + (f" and <= {most:,}" if most is not None else ""))

    return Parameter(validator=check)


Count = Annotated[int, bounds(1)]
NotNegative = Annotated[int, bounds(0)]
RowNumber = Annotated[int, bounds(0, MAX_ROWS - 1)]
RowCount = Annotated[int, bounds(1, MAX_ROWS)]
Share = Annotated[float, bounds(0, 1)]
