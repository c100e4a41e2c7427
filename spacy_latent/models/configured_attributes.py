"""Attributes of models whose value comes from the config, also after training.

Thinc saves the attributes of a model with its weights, and restores them over the config of the
pipeline. A changed config would then have no effect.
"""

from __future__ import annotations

from typing import Any

from thinc.api import Model, deserialize_attr


class ConfiguredNumber(int):
    """Number that loading does not change. 0 stands for none."""


class ConfiguredName(str):
    """Name that loading does not change. An empty name stands for none."""


@deserialize_attr.register(ConfiguredNumber)
@deserialize_attr.register(ConfiguredName)
def keep_configured(given: Any, value: Any, name: str, model: Model) -> Any:
    """Return the value of the config in place of the saved one."""
    return given
