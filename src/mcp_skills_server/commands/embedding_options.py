"""The options of a search by meaning, and what is made of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import urlsplit

import click

from mcp_skills_server.commands.fields import LocatedType, Options, option
from mcp_skills_server.errors import UsageError, missing_extra

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.runtime.embeddings.index import Embeddings
    from mcp_skills_server.runtime.embeddings.models import Embedder

KEY_VARIABLE: Final = "MCP_SKILLS_EMBEDDINGS_KEY"


class ModelType(LocatedType):
    """A folder, whose path becomes absolute, or an address."""

    name = "model"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        """The folder with its absolute path, or the address as it is."""
        return self.located(value, os.getcwd())

    def located(self, value: str, folder: str) -> str:
        """The folder from `folder` on, or the address as it is."""
        return value if "://" in value else os.path.normpath(os.path.join(folder, value))


class EmbeddingOptions(Options):
    """What finds skills by their meaning."""

    heading: ClassVar[str] = "Search by meaning"
    embeddings: str | None = option(
        None,
        "Let skills_search compare meanings too, by a model2vec model in this folder, or by an endpoint that speaks "
        f"OpenAI's embeddings, whose key is in {KEY_VARIABLE}. Needs the extra [embeddings].",
        type=ModelType(),
        metavar="DIR|URL",
    )
    embeddings_model: str | None = option(None, "The name of the model at an endpoint.", metavar="NAME")


def make_embeddings(registry: Registry, options: EmbeddingOptions, cache_dir: str | None) -> Embeddings | None:
    """What searches by meaning, started; None where it was not asked for. Nothing is loaded before the first scan.

    Args:
        registry: the skills.
        options: which model.
        cache_dir: the folder that was named for what is kept, None for the user's cache.

    Raises:
        UsageError: there is no such model, it may not be asked, or the extra is not installed.
    """
    given = options.embeddings
    if given is None:
        if options.embeddings_model is not None:
            raise UsageError("--embeddings-model names a model at an endpoint; give --embeddings URL too")
        return None
    embedder = _endpoint(given, options.embeddings_model) if "://" in given else _local(given, options.embeddings_model)
    from mcp_skills_server.directories import cache_directory
    from mcp_skills_server.runtime.embeddings.index import Embeddings

    folder = Path(cache_dir) if cache_dir else cache_directory()
    made = Embeddings(registry, embedder, folder / "embeddings")
    made.start()
    return made


def _local(folder: str, model: str | None) -> Embedder:
    from mcp_skills_server.runtime.embeddings.models import MODEL_FILES, LocalModel

    if model is not None:
        raise UsageError("--embeddings-model names a model at an endpoint; a folder has only one")
    missing = [name for name in MODEL_FILES if not Path(folder, name).is_file()]
    if missing:
        raise UsageError(f"--embeddings {folder}: no model2vec model is there, for it has no {', '.join(missing)}")
    _need("model2vec")
    return LocalModel(Path(folder))


def _endpoint(url: str, model: str | None) -> Embedder:
    from mcp_skills_server.runtime.embeddings.models import Endpoint
    from mcp_skills_server.sources.addresses import is_loopback

    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise UsageError("--embeddings: the address cannot be read") from None
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"--embeddings: an address is no place for a key; set {KEY_VARIABLE}")
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))):
        raise UsageError(f"--embeddings {url}: give an address with https, or with http on this machine")
    if model is None:
        raise UsageError(f"--embeddings {url}: give the name of the model there, by --embeddings-model")
    secret = os.environ.get(KEY_VARIABLE)
    if secret is not None and not (secret.isascii() and secret.isprintable() and secret.strip()):
        raise UsageError(f"{KEY_VARIABLE} is empty, or has what no key may have; set or unset it")
    _need("numpy")
    return Endpoint(url, model, secret.strip() if secret is not None else None)


def _need(package: str) -> None:
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise missing_extra("--embeddings", "embeddings")
