"""What the tests of TRL's adapter share."""

import pytest


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    """A random tiny policy on disk."""
    from wm_plugin.lab.tiny.__main__ import main

    path = tmp_path_factory.mktemp("policy") / "tiny"
    main(["--out", str(path), "--random"])
    return path
