"""Each host has an environment of its own: the tests of a host that is not installed are not collected."""

from importlib import metadata

from hypothesis import HealthCheck, settings

# what an example takes depends on what else the machine does
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def installed(host: str) -> bool:
    try:
        metadata.version(host)
    except metadata.PackageNotFoundError:
        return False
    return True


collect_ignore = [f"on_{host}" for host in ("trl", "verl") if not installed(host)]
