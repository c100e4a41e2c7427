"""Ray clusters: a running cluster, or a cluster that is started for as long as it is needed.

Ray is optional (``pip install 'spacy-latent[ray]'``). Ray alone decides where tasks run.
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

# Ray identifies a machine by its network address, and then accepts connections from the network.
# It uses the loopback address if this variable is 0, and on systems whose firewall would ask the
# user.
REACHABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
LOOPBACK = ("127.", "::1")


def part_of_ray(name: str, instead: str) -> Any:
    """Import a module of Ray.

    Args:
        instead: Sentence on the alternative without Ray, for the message.

    Raises:
        LatentError: If Ray is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise LatentError(
            f"{name} is not installed: pip install 'spacy-latent[ray]', on each machine of the "
            f"cluster. {instead} ({error})"
        ) from error


def import_ray(address: str | None, instead: str) -> Any:
    """Import Ray; a cluster that it starts without an address is limited to this machine."""
    if address is None and "ray" not in sys.modules:
        os.environ.setdefault(REACHABLE, "0")
    return part_of_ray("ray", instead)


@contextmanager
def connected(
    ray: Any, address: str | None, *, cpus: int | None = None, log: bool = False
) -> Iterator[None]:
    """Connect to a Ray cluster inside the context.

    The cluster is the one that this process is connected to already, or the cluster at the address.
    Without both, a cluster is started here and stopped at the end.

    Args:
        cpus: Number of CPUs of a cluster that is started here; None for the CPUs of the machine.
        log: Show the output of workers.
    """
    if ray.is_initialized():
        yield
        return
    if address is None:
        # Without "local", Ray would connect to the cluster in RAY_ADDRESS or in one of Ray's files.
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=log)
    else:
        try:
            ray.init(address=address, log_to_driver=log)
        except ConnectionError as error:
            raise LatentError(
                f"No cluster of Ray answers at {address!r}: {error}. Start one with 'ray start "
                "--head' and give its address. Without an address, this command starts a "
                "cluster."
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
                f"Ray listens at {node['NodeManagerAddress']}, and everyone who can connect to "
                f"it can run code on this machine. To allow only this machine, set {REACHABLE}=0 "
                "before Ray is imported.",
                LatentWarning,
                stacklevel=4,
            )
