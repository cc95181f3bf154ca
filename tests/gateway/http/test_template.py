"""Conversations as text, compared with what `transformers` makes of the same templates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from kvstore.errors import ConfigError
from kvstore.gateway.http.refusal import BadField
from kvstore.gateway.http.template import Conversation, Message, Template

CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
STRICT = """{{ bos_token }}{% for message in messages %}
{% if loop.index0 % 2 == 1 and message['role'] != 'assistant' %}
{{ raise_exception('roles are to take turns') }}
{% endif %}
{% if message['role'] == 'user' %}[INST] {{ message['content'] | trim }} [/INST]
{% else %} {{ message['content'] | tojson }}{{ eos_token }}
{% endif %}
{% if not tools and loop.last %}{% break %}{% endif %}
{% endfor %}"""
TRAINED = """{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- generation %}{{ message.content | tojson(ensure_ascii=True, separators=(',', ':')) }}
{%- endgeneration %}
{%- else %}{{ [message.content] | tojson(sort_keys=true, indent=1) }}
{%- endif %}
{%- endfor %}"""
SAID = (("user", "  what is ü? "), ("assistant", 'a "letter"'), ("user", "and\nthen?"))


def folder(path: Path, **config: object) -> Path:
    path.mkdir(exist_ok=True)
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def conversation(*said: tuple[str, str]) -> Conversation:
    return Conversation(tuple(Message(*one) for one in said))


@pytest.mark.parametrize("template", [CHATML, STRICT, TRAINED])
def test_a_conversation_is_the_text_that_transformers_makes_of_it(
    tmp_path: Path, template: str
) -> None:
    specials = {"bos_token": "<s>", "eos_token": "</s>"}
    theirs = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **specials)
    expected = theirs.apply_chat_template(
        [{"role": role, "content": text} for role, text in SAID],
        chat_template=template,
        tokenize=False,
        add_generation_prompt=True,
    )
    mine = Template(folder(tmp_path, chat_template=template, **specials))
    assert mine.text(conversation(*SAID)) == expected and "then?" in expected


def test_a_file_of_its_own_comes_before_the_config_and_default_before_other_names(
    tmp_path: Path,
) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert Template(folder(tmp_path, chat_template=named)).text(conversation(("user", "x"))) == "d"
    (tmp_path / "chat_template.jinja").write_text("file {{ eos_token }}")
    with_token = folder(tmp_path, chat_template="c", eos_token={"content": "<e>"})
    assert Template(with_token).text(conversation(("user", "x"))) == "file <e>"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (STRICT, "roles are to take turns"),
        ("{{ messages[7].role.name }}", "template: .* has no element 7"),
        ("{{ messages.append(1) }}", "template: "),
        ("{{ 1 / 0 }}", "template: "),
        ("{{ ''.__class__.__mro__ }}", "template: "),
    ],
)
def test_what_a_template_cannot_do_with_is_refused(
    tmp_path: Path, template: str, says: str
) -> None:
    made = Template(folder(tmp_path, chat_template=template))
    with pytest.raises(BadField, match=says) as refused:
        made.text(conversation(("user", "x"), ("user", "y")))
    assert refused.value.param == "messages"


def test_a_model_without_one_does_not_chat_and_one_that_is_none_is_told_at_the_start(
    tmp_path: Path,
) -> None:
    for empty in (tmp_path, folder(tmp_path / "a"), folder(tmp_path / "b", chat_template=[])):
        with pytest.raises(BadField, match="no chat template"):
            Template(empty).text(conversation(("user", "x")))
    with pytest.raises(ConfigError, match="its chat template"):
        Template(folder(tmp_path, chat_template="{% if %}"))
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is no text"):
        Template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(ConfigError, match="no JSON"):
        Template(tmp_path)
