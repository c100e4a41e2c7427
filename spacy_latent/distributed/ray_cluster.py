"""A cluster of Ray's: one that runs already, or one that is begun for as long as it is needed.

Ray is optional (``pip install 'spacy-latent[ray]'``), and decides alone what runs where.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from warnings import warn

from spacy_latent.errors import LatentError, LatentWarning

# Ray calls a machine by its address in the network, and listens to the network then. On systems
# whose firewall would ask about that it calls it by the loopback, and where this is 0.
REACHABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
LOOPBACK = ("127.", "::1")


def part_of_ray(name: str, instead: str) -> Any:
    """A module of Ray's. instead: what there is without Ray. Raises LatentError where it is not
    installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise LatentError(
            f"{name} is not installed: pip install 'spacy-latent[ray]', on each machine of the "
            f"cluster. {instead} ({error})"
        ) from error


def import_ray(address: str | None, instead: str) -> Any:
    """Ray itself, so that a cluster that it begins without an address keeps to this machine."""
    if address is None and "ray" not in sys.modules:
        os.environ.setdefault(REACHABLE, "0")
    return part_of_ray("ray", instead)


@contextmanager
def connected(
    ray: Any, address: str | None, *, cpus: int | None = None, log: bool = False
) -> Iterator[None]:
    """Be connected to a cluster: to the one that this process is connected to already; else to that
    of the address; else to one that is begun here, and ended after.

    ray: of :func:`import_ray`.
    cpus: of one that is begun here; those of the machine if not given.
    log: whether what workers print is shown.
    """
    if ray.is_initialized():
        yield
        return
    if address is None:
        # Without "local" it would be the cluster that RAY_ADDRESS or a file of Ray's names.
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=log)
    else:
        try:
            ray.init(address=address, log_to_driver=log)
        except ConnectionError as error:
            raise LatentError(
                f"No cluster of Ray answers at {address!r}: {error}. Start one with 'ray start "
                "--head' and give its address, or give none, and one is begun for this command."
            ) from error
    try:
        if address is None:
            _warn_of_listening(ray)
        yield
    finally:
        ray.shutdown()


def _warn_of_listening(ray: Any) -> None:
    for node in ray.nodes():
        if not node["NodeManagerAddress"].startswith(LOOPBACK):
            warn(
                f"Ray listens at {node['NodeManagerAddress']}, and whoever may talk to it runs "
                f"code here. To keep it to this machine, set {REACHABLE}=0 before Ray is imported.",
                LatentWarning,
                stacklevel=4,
            )


__all__ = ["connected", "import_ray", "part_of_ray"]
