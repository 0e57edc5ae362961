"""Model family `my-plugin`: the descriptor. Data and pure functions; `build` imports torch.

`plan` says what the model needs before any weight is read; `build` makes the module.
"""

from __future__ import annotations

from srtkit.spec.capabilities import NoOptions
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.models import Model, ModelBuild, ModelsDescriptor
from srtkit_plugin_models_my_plugin.plan import ARCHITECTURE, plan


def build(given: ModelBuild) -> Model:
    """The module, its parameters allocated and not yet filled."""
    from srtkit_plugin_models_my_plugin.decoder import MyPluginDecoder

    return MyPluginDecoder(given)


@hookimpl
def srtkit_models() -> ModelsDescriptor:
    """Offers the family `my-plugin`."""
    return ModelsDescriptor(
        contract="1.1",
        options=NoOptions,
        architectures=frozenset({ARCHITECTURE}),
        plan=plan,
        build=build,
    )
