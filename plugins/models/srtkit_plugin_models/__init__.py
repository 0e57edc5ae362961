"""The model families of srtkit: the descriptor, and which architectures there are. No torch.

`plan` reads the config and says what the model needs; `build` imports the decoder.
"""

from __future__ import annotations

from srtkit.spec.capabilities import NoOptions
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.models import Model, ModelBuild, ModelsDescriptor
from srtkit_plugin_models.families import FAMILIES
from srtkit_plugin_models.plan import plan


def build(given: ModelBuild) -> Model:
    """Makes the module; parameters are allocated, not filled."""
    from srtkit_plugin_models.decoder import Decoder

    return Decoder(given)


@hookimpl
def srtkit_models() -> ModelsDescriptor:
    """Offers the architectures of `families.py`."""
    return ModelsDescriptor(
        contract="1.0",
        options=NoOptions,
        architectures=frozenset(FAMILIES),
        plan=plan,
        build=build,
    )
