"""Checks of the arguments that a program passes to `MatrixFactorizationDP`."""

import os
import pathlib
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message

from fedmf import checks
from fedmf.files import expanded


def check_round(server_round: Any) -> None:
    """Raises an error unless the value is a round number of Flower, at least 1.

    Raises:
      TypeError, ValueError: with the way out.
    """
    round_hint = "pass on the number that Flower gives, from 1 on"
    checks.integer("server_round", server_round, low=1, hint=round_hint)


def check_grid(grid: Any) -> None:
    """Raises a TypeError unless the value is a Flower grid, which sends messages to nodes.

    Raises:
      TypeError: with the way out.
    """
    grid_methods = [getattr(grid, name, None) for name in ("get_node_ids", "send_and_receive")]
    if isinstance(grid, type) or not all(map(callable, grid_methods)):
        raise TypeError(
            f"grid={grid!r} is no Grid of Flower's: pass on the one that the ServerApp's main "
            "function gets"
        )


def check_arrays(name: str, arrays: Any) -> None:
    """Raises an error unless the value is a model, an ArrayRecord with at least one array.

    Raises:
      TypeError, ValueError: with the way out.
    """
    arrays_hint = "give the model's arrays as a flwr.app.ArrayRecord"
    if not isinstance(arrays, ArrayRecord):
        raise TypeError(f"{name}={arrays!r} is a {type(arrays).__name__}: {arrays_hint}")
    if not arrays:
        raise ValueError(f"{name} is empty: {arrays_hint}")


def check_config(name: str, config: Any, *, is_optional: bool = False) -> None:
    """Raises a TypeError unless the value is a ConfigRecord. With `is_optional` None is allowed.

    Raises:
      TypeError: with the way out.
    """
    if config is None and is_optional:
        return
    if not isinstance(config, ConfigRecord):
        raise TypeError(
            f"{name}={config!r} is a {type(config).__name__}: give a flwr.app.ConfigRecord"
        )


def check_evaluate_fn(evaluate_fn: Any) -> None:
    """Raises a TypeError unless the value is a function of two arguments, or None.

    Raises:
      TypeError: with the way out.
    """
    if evaluate_fn is not None:
        function_hint = "give a function of a round's number and the model's arrays, or None"
        checks.function("evaluate_fn", evaluate_fn, num_arguments=2, hint=function_hint)


def checked_folder(folder: Any) -> pathlib.Path | None:
    """Returns the absolute path of a folder, because the working folder may change later, or None
    if no folder is given.

    Raises:
      TypeError: it is no path.
    """
    if folder is None:
        return None
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise TypeError(f"folder={folder!r} must be the path of a folder, or None")
    return expanded(folder).absolute()


def check_sending(server_round: Any, arrays: Any, config: Any, grid: Any) -> None:
    """Raises an error if arguments of configure_train or configure_evaluate are invalid.

    Raises:
      TypeError, ValueError: with the way out.
    """
    check_round(server_round)
    check_arrays("arrays", arrays)
    check_config("config", config)
    check_grid(grid)


def checked_replies(replies: Any) -> list[Message]:
    """Checks that replies are messages of Flower, and returns them as a list.

    Raises:
      TypeError: they are no messages.
    """
    replies_hint = "give the messages that the grid has received"
    reply_list = checks.entries("replies", replies, hint=replies_hint)
    for message in reply_list:
        if not isinstance(message, Message):
            raise TypeError(
                f"replies has {message!r}, which is no flwr.app.Message: {replies_hint}"
            )
    return reply_list
