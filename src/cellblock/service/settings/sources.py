"""Reads settings with pydantic-settings, which merges the sources and checks each value."""

from __future__ import annotations

import functools
import os
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import Field, ValidationError, create_model
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource

from cellblock.common import config
from cellblock.errors import InvalidInputError, shown
from cellblock.service.settings import PREFIXES, Settings, nearest

_LIMITS = {"ge", "gt", "le", "allow_inf_nan", "pattern"}


class _Sources(BaseSettings):
    """The sources of the model's fields, in order of precedence. The model's arguments are the file's content."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources, for pydantic-settings."""
        environment = [EnvSettingsSource(settings_cls, env_prefix=prefix, env_ignore_empty=True) for prefix in PREFIXES]
        return (*environment, init_settings)


def _model() -> type[_Sources]:
    hints = get_type_hints(Settings)
    made: dict[str, Any] = {
        item.name: (
            hints[item.name],
            Field(item.default, **{key: item.metadata[key] for key in _LIMITS & item.metadata.keys()}),
        )
        for item in fields(Settings)
    }
    return create_model("Settings", __base__=_Sources, **made)


_Model = _model()


@functools.lru_cache(maxsize=16)
def read(variables: tuple[tuple[str, str], ...], file: tuple[str, int, int] | None) -> tuple[Settings, dict[str, str]]:
    """Return the settings, and the source of each value that is not the default.

    Args:
        variables: The variables of the environment that may be settings.
        file: The path of the file, its time and its size.

    Raises:
        InvalidInputError: A value is wrong, or the file cannot be used.
    """
    content = {} if file is None else _read_file(Path(file[0]))
    sources = dict.fromkeys(content, file[0] if file else "")
    for prefix in reversed(PREFIXES):
        sources |= {name[len(prefix) :].lower(): name for name, _ in variables if name.startswith(prefix)}
    known = {item.name for item in fields(Settings)}
    for name in sources.keys() - known:
        warnings.warn(f"{sources.pop(name)} is not a setting of cellblock{nearest(name)}", stacklevel=3)
    try:
        made = _Model(**content)
    except ValidationError as error:
        wrong = error.errors()[0]
        name = str(wrong["loc"][0])
        raise InvalidInputError(f"{_where(name, sources)} is {shown(wrong['input'])}: {wrong['msg']}") from None
    return Settings(**{name: getattr(made, name) for name in known}), sources


def _where(name: str, sources: dict[str, str]) -> str:
    source = sources.get(name, name)
    return f"{name} in {source}" if os.path.isabs(source) else source


def _read_file(path: Path) -> dict[str, Any]:
    """Return the content of the file, after checking for unknown keys.

    Raises:
        InvalidInputError: It cannot be read, others can write to it, or a key is unknown.
    """
    content = config.settings_content(path)
    known = {item.name for item in fields(Settings)}
    for name in content:
        if name not in known:
            raise InvalidInputError(f"{path}: there is no setting {name[:100]!r}{nearest(name)}")
    return content
