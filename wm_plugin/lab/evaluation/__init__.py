"""Evaluations of world models and agents, one measure a file. Imports neither host.

Import the modules themselves: some of them need torch or an extra.
"""

__all__: list[str] = []
