"""Environments by name: the built-in ones, and anybody's own as `package.module:Class`.

A class is found with its config: the dataclass that its constructor declares for `config`. Its fields stand beside
`kind` in the experiment.
"""

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, get_type_hints

from executor.environments.arithmetic import Arithmetic
from executor.environments.base import Environment
from executor.environments.cipher import Cipher
from libra.config.document import Document, KeyPath
from libra.config.validate import validate
from libra.errors import UserError

PLACE: Final[KeyPath] = ("workload", "environment")
"""Where an experiment names its environment."""
BUILT_IN: Final[dict[str, type[Any]]] = {"arithmetic": Arithmetic, "cipher": Cipher}


@dataclass(frozen=True, slots=True)
class EnvironmentEntry:
    """An environment's class with its validated config."""

    kind: str
    environment: type[Any]
    config: Any

    def make(self) -> Environment:
        """The environment. Raises UserError where its own code refuses, or has no task."""
        try:
            made: Environment = self.environment(self.config)
            num_tasks = len(made.tasks)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"{_dotted()}: {self.kind} cannot be made: {type(error).__name__}: {error}"
            ) from error
        if num_tasks == 0:
            raise UserError(f"{_dotted()}: {self.kind} has no task; give it at least one")
        return made


def find_environment(settings: Mapping[str, Any], document: Document | None = None) -> EnvironmentEntry:
    """The environment that `settings` names by its `kind`, with its other keys as its config.

    document: the experiment, for file and line of what is refused. Raises UserError.
    """
    document = document if document is not None else Document()
    own = dict(settings)
    kind = own.pop("kind", None)
    at = f"{document.origin((*PLACE, 'kind'))}: {_dotted()}.kind"
    if not isinstance(kind, str):
        raise UserError(
            f"{at}: must name an environment; known: {', '.join(BUILT_IN)}, or package.module:Class"
        )
    try:
        environment = BUILT_IN.get(kind) or _import(kind)
        config = _config_class(environment, kind)
    except UserError as error:
        raise UserError(f"{at}: {error}") from error
    return EnvironmentEntry(kind, environment, validate(config, own, document, PLACE))


def _import(kind: str) -> type[Any]:
    module_name, colon, class_name = kind.partition(":")
    if not colon:
        raise UserError(f"no environment {kind!r}; known: {', '.join(BUILT_IN)}, or package.module:Class")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # its code runs now, and may do anything
        raise UserError(
            f"{kind}: importing {module_name} failed with {type(error).__name__}: {error}; start from the folder "
            "that holds it or put that on PYTHONPATH"
        ) from error
    environment = getattr(module, class_name, None)
    if not isinstance(environment, type):
        raise UserError(f"{kind}: {module_name} has no class {class_name}")
    return environment


def _config_class(environment: type[Any], kind: str) -> type[Any]:
    if not callable(getattr(environment, "reset", None)):
        raise UserError(f"{kind}: an environment needs a method reset(self, task, rng)")
    try:
        config = get_type_hints(environment.__init__).get("config")
    except Exception as error:  # text annotations are code
        raise UserError(f"{kind}: its constructor's annotations cannot be read ({error})") from error
    if not (isinstance(config, type) and dataclasses.is_dataclass(config)):
        raise UserError(f"{kind}: the constructor must be (self, config: <a frozen dataclass>)")
    return config


def _dotted() -> str:
    return ".".join(map(str, PLACE))
