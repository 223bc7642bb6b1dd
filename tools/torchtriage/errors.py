"""The ways a call can fail. Each message says what was wrong, where, and what to do about it.

Partial input is not a failure: a report with ``gaps`` is. These exceptions are for calls that could not start.
"""

from __future__ import annotations


class TorchtriageError(Exception):
    """Base of all errors that a caller can mend; the command line exits with 2, MCP answers with a tool error."""


class InputNotFoundError(TorchtriageError):
    """A path that was given does not exist, or nothing was given."""


class OutsideRootsError(TorchtriageError):
    """A path lies outside the folders that this server was started for."""


class BadCallError(TorchtriageError):
    """A parameter has a value that the tool cannot use."""


class KnowledgeError(TorchtriageError):
    """The playbook or the decision tree cannot be used as it stands."""


class UnreadableError(TorchtriageError):
    """An artefact could not be read; the message is fit to stand in ``gaps``."""


class StreamError(TorchtriageError):
    """Standard input or output is closed, or takes no more."""
