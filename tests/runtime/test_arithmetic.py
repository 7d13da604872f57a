import sys

import pytest

from wm_plugin.runtime.arithmetic import PLAIN, has_plain_kernels, use_plain_kernels


@pytest.mark.parametrize("imported", [False, True])
def test_what_the_user_set_gives_way_until_torch_has_read_it(monkeypatch, imported: bool) -> None:
    for name in PLAIN:
        monkeypatch.setenv(name, "avx2")
    assert not has_plain_kernels()
    if imported:
        monkeypatch.setitem(sys.modules, "torch", sys)
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert use_plain_kernels() is not imported
    assert has_plain_kernels() is not imported
