"""`moonpool make-model` and `moonpool spec`: model folders, and the namespace they stand for."""

from __future__ import annotations

import argparse
import filecmp
import shutil
import tempfile
from pathlib import Path

from kvstore.cli.options import Commands, add_codec, check_model, command
from kvstore.cli.output import naming
from kvstore.errors import ConfigError

_OF_MODELS = (".json", ".safetensors", ".bin", ".gguf", ".model")  # suffixes of their files


def add(commands: Commands) -> None:
    make = command(
        commands,
        "make-model",
        "write a small Llama with random weights and a tokenizer, downloading nothing and "
        "overwriting none",
        "moonpool make-model ./tiny --seed 7",
    )
    make.add_argument("path", type=Path, help="folder to write")
    make.add_argument(
        "--seed", type=int, default=0, help="same seed, same bytes (default: %(default)s)"
    )
    make.set_defaults(run=run_make)

    spec = command(
        commands,
        "spec",
        "print the KVSpec of a model folder as JSON, for put, get and match",
        "moonpool spec --model ./tiny > spec.json",
    )
    spec.add_argument(
        "--model", type=Path, required=True, metavar="DIR", help="a Hugging Face model folder"
    )
    spec.add_argument(
        "--block-tokens",
        type=int,
        default=64,
        metavar="N",
        help="tokens of a block, as engines' --page-tokens (default: %(default)s)",
    )
    add_codec(spec)
    spec.set_defaults(run=run_spec)


def run_make(args: argparse.Namespace) -> int:
    if args.seed < 0:
        raise ConfigError(f"--seed {args.seed}: 0 or more")
    from kvstore.engine.make_model import make_model

    path: Path = args.path
    if any(one.suffix in _OF_MODELS for one in path.glob("*")):
        with tempfile.TemporaryDirectory(prefix="moonpool-model-") as anew:
            made = make_model(anew, seed=args.seed)
            names = [one.name for one in made.iterdir() if one.suffix in _OF_MODELS]
            if filecmp.cmpfiles(path, anew, names, shallow=False)[0] != names:
                raise ConfigError(f"{path} has another model: name another folder, or remove it")
            for one in made.iterdir():
                if not (path / one.name).exists():  # it was made before there was that
                    shutil.copy(one, path)
    else:
        with naming(path):
            make_model(path, seed=args.seed)
    print(path)
    return 0


def run_spec(args: argparse.Namespace) -> int:
    check_model(args.model)
    from kvstore.engine.namespace import spec_of

    print(spec_of(args.model, args.block_tokens, args.codec).canonical())
    return 0


def default_model(directory: Path) -> Path:
    """The random model of a state directory, made when it is first asked for.

    It is made beside its place: what an interruption or a full disk left of one is not there.
    """
    from kvstore.engine.make_model import make_model

    path, anew = directory / "random-model", directory / "random-model.new"
    if not all((path / name).exists() for name in ("model.safetensors", "chat_template.jinja")):
        for unfinished in (path, anew):
            shutil.rmtree(unfinished, ignore_errors=True)
        with naming(anew):
            make_model(anew).rename(path)
    return path
