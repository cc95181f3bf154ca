"""A model's own chat template: a conversation as the text that the model was made to go on with.

A template is a program of the model folder's, in Jinja. It runs in a sandbox, where it reaches what
it is given and nothing else, and its way of saying that it cannot do with a conversation is heard.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvstore.errors import ConfigError
from kvstore.gateway.http.refusal import BadField

# What a template may fail by: it is a program, and what it is given is not of its choosing.
_FAULTS = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError)
_SPECIALS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


@dataclass(frozen=True, slots=True)
class Message:
    """Of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """That the model is to go on with."""

    messages: tuple[Message, ...]


class Generation(Extension):
    """`{% generation %}` marks what the model itself said, for whoever trains on a conversation:
    here it is text as any."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Template:
    """A model folder's, if it has one. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        """Raises `ConfigError` for one that is no template."""
        config = _config(folder)
        source = _source(folder, config)
        self._specials = {name: _token(config.get(name)) for name in _SPECIALS}
        machine = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
        )
        machine.filters["tojson"] = _json
        machine.globals["raise_exception"] = _refuse
        machine.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = None if source is None else machine.from_string(source)
        except TemplateSyntaxError as error:
            raise ConfigError(f"--model = {folder}: its chat template: {error}") from None

    def text(self, conversation: Conversation) -> str:
        """Up to where the model is to go on. Raises `BadField`."""
        if self._template is None:
            raise BadField("messages", "messages: this model has no chat template, so it does not "
                           "chat: ask /v1/completions")  # fmt: skip
        try:
            return self._template.render(
                messages=[asdict(one) for one in conversation.messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._specials,
            )
        except _FAULTS as error:
            raise BadField("messages", f"messages: the model's template: {error}") from None


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is no JSON object")
    return found


def _source(folder: Path, config: dict[str, Any]) -> str | None:
    """A file of its own comes first; of several with names it is the one called default."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text()
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is no text: {error}") from None
    said = config.get("chat_template")
    if isinstance(said, list):
        named = {one.get("name"): one.get("template") for one in said if isinstance(one, dict)}
        said = named.get("default")
    return said if isinstance(said, str) else None


def _token(said: Any) -> str:
    text = said.get("content") if isinstance(said, dict) else said
    return text if isinstance(text, str) else ""


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """By the names and in the order that `transformers` gives them."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> None:
    raise TemplateError(message)
