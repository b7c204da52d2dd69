"""The error of a rule in the settings."""

from sluice.errors import RequestError


class RuleError(RequestError, ValueError):
    """A rule that can't be understood; names section, key, the rule's number and its text."""
