"""verl on a CPU, as in the tests of its adapter."""

import on_verl.conftest  # noqa: F401
