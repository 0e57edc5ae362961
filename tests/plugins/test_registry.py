"""Discovery from metadata: rules 1, 4 and 5, and metadata that is damaged or hidden."""

from __future__ import annotations

import pytest

from srtkit.plugins.registry import Offer, Registry, discover
from srtkit.spec.errors import PluginDuplicate, PluginIncompatible, PluginNotFound
from srtkit.spec.versions import CONTRACTS
from tests.plugins.toys import Site

EXPLODES = "raise AssertionError('imported')"


def found(site: Site) -> Registry:
    return discover([str(site.path)])


def test_an_offer_keeps_distribution_version_and_entry_point(site: Site) -> None:
    site.add("Toy.Dist", {"srtkit.attention.v1": {"my_kernel": "toy_module:door"}}, {}, version="1.2.post3")
    (offer,) = found(site).offers
    assert offer == Offer(
        kind="attention",
        name="my-kernel",
        major=1,
        value="toy_module:door",
        distribution="toy-dist",
        version="1.2.post3",
    )


def test_discovery_imports_nothing(site: Site) -> None:
    site.plugin("attention", "bad", EXPLODES)
    code = """
        import json, sys
        from srtkit.plugins.registry import discover
        offers = discover([sys.argv[1]]).offers
        print(json.dumps([[o.name for o in offers], [m for m in sys.modules if m.startswith(("toy_", "torch"))]]))
    """
    assert site.answer(code, str(site.path)) == [["bad"], []]


def test_other_groups_are_ignored(site: Site) -> None:
    site.add(
        "other", {"console_scripts": {"x": "y"}, "srtkit.attention": {"a": "b"}, "srtkit.attention.vx": {"a": "b"}}, {}
    )
    assert found(site).offers == ()


def test_offers_are_sorted_whatever_the_order_on_disk(site: Site) -> None:
    for name in ("c", "a", "b"):
        site.plugin("attention", name)
    site.plugin("transport", "a")
    assert [offer.part for offer in found(site).offers] == ["attention:a", "attention:b", "attention:c", "transport:a"]


def test_hyphen_and_underscore_are_the_same_name(site: Site) -> None:
    site.plugin("graph_runner", "cuda_full")
    assert found(site).find("graph_runner", "cuda-full") == found(site).find("graph_runner", "CUDA_full")


def test_rule_1_another_major_is_reported_and_not_imported(site: Site) -> None:
    site.plugin("attention", "late", EXPLODES, major=2)
    with pytest.raises(PluginIncompatible, match="speaks attention v2, this core speaks v1") as refused:
        found(site).find("attention", "late")
    assert "toy-attention-late 1.0" in refused.value.cause
    assert refused.value.remedy == "pip install --upgrade srtkit-core"
    assert refused.value.exit_code == 23


def test_rule_1_our_major_is_taken_where_both_are_offered(site: Site) -> None:
    site.add("both", {"srtkit.attention.v1": {"x": "one"}, "srtkit.attention.v2": {"x": "two"}}, {})
    assert found(site).find("attention", "x").value == "one"


def test_rule_4_an_official_name_gets_its_install_line(site: Site) -> None:
    site.plugin("attention", "mine")
    with pytest.raises(PluginNotFound) as missing:
        found(site).find("transport", "zmq")
    assert missing.value.remedy == "pip install srtkit-plugin-transport-zmq"
    assert missing.value.exit_code == 21


def test_rule_4_an_unknown_name_gets_a_suggestion_and_the_installed_names(site: Site) -> None:
    site.plugin("attention", "mykernel")
    with pytest.raises(PluginNotFound) as missing:
        found(site).find("attention", "mykernal")
    assert 'did you mean "mykernel"?' in missing.value.remedy
    assert "installed: mykernel" in missing.value.remedy


def test_rule_4_with_no_plugin_at_all_the_set_is_named(site: Site) -> None:
    site.plugin("cli", "hello", "")
    with pytest.raises(PluginNotFound) as missing:
        found(site).find("platform", "cpu")
    assert missing.value.remedy == "pip install 'srtkit-core[cpu]'"


def test_an_unknown_kind_gets_a_suggestion(site: Site) -> None:
    with pytest.raises(PluginNotFound, match='there is no kind "atention"') as missing:
        found(site).find("atention", "torch")
    assert missing.value.remedy == 'did you mean "attention"?'


def test_rule_5_two_distributions_of_one_name_are_an_error_naming_both(site: Site) -> None:
    for dist in ("one", "two"):  # "between" makes sure that the duplicates are not neighbours on disk
        site.add(dist, {"srtkit.attention.v1": {"fast": f"toy_{dist}"}}, {f"toy_{dist}": EXPLODES})
    site.add("between", {"srtkit.attention.v1": {"other": "toy_between"}}, {})
    with pytest.raises(PluginDuplicate, match=r"one 1\.0 and two 1\.0") as refused:
        found(site).find("attention", "fast")
    assert refused.value.exit_code == 24


def test_rule_5_the_distribution_disambiguates(site: Site) -> None:
    for dist in ("one", "two"):
        site.add(dist, {"srtkit.attention.v1": {"fast": f"toy_{dist}"}}, {})
    assert found(site).find("attention", "two:fast").value == "toy_two"
    with pytest.raises(PluginNotFound, match="no distribution three offers it; it is offered by one, two"):
        found(site).find("attention", "three:fast")


def test_rule_5_one_distribution_that_offers_a_name_twice(site: Site) -> None:
    site.add("one", {"srtkit.attention.v1": {"a-b": "toy_x", "a_b": "toy_y"}}, {})
    with pytest.raises(PluginDuplicate):
        found(site).find("attention", "a-b")


@pytest.mark.parametrize(
    ("metadata", "entry_points"),
    [
        (None, "[srtkit.attention.v1]\nx = y\n"),
        ("Name: broken\n", "[srtkit.attention.v1]\nx = y\n"),
        ("Name: broken\nVersion: 1\n", "[srtkit.attention.v1]\nno equals sign\n"),
    ],
    ids=["no METADATA", "no version", "entry points do not parse"],
)
def test_broken_metadata_is_a_fault_that_hides_nobody(site: Site, metadata: str | None, entry_points: str) -> None:
    info = site.path / "broken-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(entry_points)
    if metadata is not None:
        (info / "METADATA").write_text(metadata)
    site.plugin("attention", "fine")
    registry = found(site)
    assert [offer.name for offer in registry.offers] == ["fine"]
    (fault,) = registry.faults
    assert str(site.path) in fault
    assert "broken metadata" in fault


def test_a_hidden_second_copy_of_a_distribution_is_a_fault(site: Site) -> None:
    site.plugin("attention", "mine")
    behind = Site(site.path.parent / "behind")
    behind.add("toy-attention-mine", {"srtkit.attention.v1": {"old": "toy_old"}}, {}, version="0.9")
    registry = discover([str(site.path), str(behind.path)])
    assert [offer.name for offer in registry.offers] == ["mine"]
    (fault,) = registry.faults
    assert "toy-attention-mine 0.9" in fault
    assert "hidden by 1.0" in fault


def test_an_edited_entry_point_is_seen_at_once(site: Site) -> None:
    """stevedore's own cache would serve the old one for two minutes."""
    site.plugin("attention", "mine")
    assert found(site).find("attention", "mine").value == "toy_attention_mine"
    info = site.path / "toy_attention_mine-1.0.dist-info"
    (info / "entry_points.txt").write_text("[srtkit.attention.v1]\nmine = elsewhere\n")
    assert found(site).find("attention", "mine").value == "elsewhere"


def test_every_kind_has_a_group_of_its_major() -> None:
    assert {contract.group for contract in CONTRACTS.values()} == {
        f"srtkit.{kind}.v{contract.major}" for kind, contract in CONTRACTS.items()
    }
