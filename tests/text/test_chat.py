"""Chat templates: what they may do, what they get, and what a request hears when it does not fit."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from srtkit.spec.errors import LoaderError, RequestError, Unsupported
from srtkit.text.chat import ChatTemplate

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[go]{% endif %}"
PARTS = "{% for m in messages %}{% for p in m.content if p.type == 'text' %}<{{ p.text }}>{% endfor %}{% endfor %}"
EITHER = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}list{% endif %}{% endfor %}"
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
TWO_PARTS: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
]


def render(template: str, messages: list[dict[str, Any]] = HI, **variables: Any) -> str:
    return ChatTemplate(template, "<s>", "</s>").render(messages, **variables)


def test_messages_become_a_prompt() -> None:
    assert render(PLAIN) == "[user]hi[go]"
    assert render(PLAIN, add_generation_prompt=False) == "[user]hi"
    assert render("{{ bos_token }}{{ messages | length }}{{ eos_token }}") == "<s>1</s>"


@pytest.mark.parametrize(
    ("template", "one_text", "two_parts"),
    [(PLAIN, "[user]hi[go]", "[user]one\ntwo[go]"), (PARTS, "<hi>", "<one><two>"), (EITHER, "hi", "one\ntwo")],
)
def test_content_comes_in_the_form_that_the_template_reads(template: str, one_text: str, two_parts: str) -> None:
    assert render(template) == one_text
    assert render(template, TWO_PARTS) == two_parts
    assert TWO_PARTS[0]["content"][0]["text"] == "one"


@pytest.mark.parametrize("part", [{"type": "image_url", "image_url": {}}, {"type": "text"}, {}])
def test_parts_without_text_are_refused(part: object) -> None:
    with pytest.raises(RequestError, match="content part"):
        render(PLAIN, [{"role": "user", "content": [part]}])


def test_templates_have_the_tools_that_models_expect() -> None:
    assert render("{{ tools | tojson }}", tools=[{"name": "<é>"}]) == '[{"name": "<é>"}]'
    assert render("{{ {'a': 1} | tojson(indent=2) }}") == '{\n  "a": 1\n}'
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)
    assert render("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}") == "1"
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "hi!"
    assert render("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"
    assert render("{{ thinking }}{{ tools is none }}", thinking=False) == "FalseTrue"
    assert render("{{ messages[0].content }}", bos_token="no", messages_="no") == "hi"
    assert render("{{ bos_token }}", bos_token="no") == "<s>"


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ messages[7].content }}", "no element 7"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{% for i in range(9999999) %}{% endfor %}", "Range too big"),
    ],
)
def test_what_a_template_refuses_reaches_the_client(template: str, cause: str) -> None:
    with pytest.raises(RequestError, match=cause) as caught:
        render(template)
    assert "/v1/completions" in caught.value.remedy


def test_a_template_that_does_not_compile_is_the_models_fault() -> None:
    with pytest.raises(LoaderError, match="does not compile"):
        ChatTemplate("{% for m in messages %}")


@pytest.mark.parametrize("absent", [None, ""])
def test_a_model_without_a_template_points_to_completions(absent: str | None) -> None:
    template = ChatTemplate(absent)
    with pytest.raises(Unsupported, match="no chat template") as caught:
        template.render(HI)
    assert "/v1/completions" in caught.value.remedy
