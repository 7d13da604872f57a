"""verl on a CPU for the tests of this folder: a process has one platform, which verl chooses when it is first asked for it."""

import contextlib

import pytest

# nothing of it for the processes that tests start, and nothing at all where verl is not installed
with pytest.MonkeyPatch.context() as patch, contextlib.suppress(ImportError):
    patch.setenv("VERL_PLATFORM", "cpu")
    patch.setenv("VERL_ENGINE_DEVICE", "cuda")
    from verl.plugin.platform import get_platform

    get_platform()

# verl's config is thirty files, which are read for each test that composes it: libyaml takes a tenth of the time
with contextlib.suppress(ImportError):
    import omegaconf._utils
    import yaml

    class _Yaml:
        """The module yaml, as OmegaConf sees it."""

        SafeLoader = yaml.CSafeLoader

        def __getattr__(self, name):
            return getattr(yaml, name)

    omegaconf._utils.yaml = _Yaml()


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    """Let the check of a config that chooses the CPU pass."""
    monkeypatch.setenv("VERL_PLATFORM", "cpu")


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    """A model on disk: verl's check of a config reads the model's."""
    from wm_plugin.lab.tiny.policy import make_model, make_tokenizer

    path, tokenizer = tmp_path_factory.mktemp("policy"), make_tokenizer()
    tokenizer.save_pretrained(path)
    make_model(tokenizer, seed=0).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The folder of a random model of `support.on_verl`, in float64."""
    from support import on_verl

    folder = tmp_path_factory.mktemp("model")
    on_verl.save_model(folder)
    return folder


@pytest.fixture(scope="module")
def worker(model):
    """A worker of ours that has it."""
    from support.on_verl import make_worker

    return make_worker(model)
