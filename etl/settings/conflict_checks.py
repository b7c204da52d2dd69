"""Check what decides conflicts of two clusters that replicate each other: ``[apply] conflicts``."""

from __future__ import annotations

from sluice.etl.settings.errors import SettingsError
from sluice.etl.settings.sections import CONFLICT_RULES, LAST_COMMIT_WINS, Settings


def check_conflicts(name: str, settings: Settings) -> None:
    """Raise SettingsError if conflicts can't be decided as the settings in file `name` say."""
    apply = settings.apply
    if apply.conflicts not in CONFLICT_RULES:
        raise SettingsError(
            f"{name}: [apply] conflicts = {apply.conflicts!r}: must be"
            f" {' or '.join(map(repr, CONFLICT_RULES))}"
        )
    if not apply.reverse_relay:
        if apply.conflicts == LAST_COMMIT_WINS:
            raise SettingsError(
                f"{name}: [apply] conflicts = {LAST_COMMIT_WINS!r} needs reverse-relay, the URL of"
                " the relay log of the pipeline in the other direction"
            )
        return
    if why := _obstacle(settings):
        raise SettingsError(f"{name}: [apply] reverse-relay {why}")


def _obstacle(settings: Settings) -> str:
    """Return why the other direction's relay log can't show conflicts, "" if it can."""
    from sluice.relay import RelayError, refuse_credentials

    filters = settings.filters
    texts = [rule.text for rule in filters.rows] + [rule.text for rule in filters.columns]
    shaping = next(iter(texts), "")
    try:
        refuse_credentials(settings.apply.reverse_relay)
    except RelayError as error:
        return f"= {settings.apply.reverse_relay!r}: {error}"
    if settings.apply.reverse_relay == settings.relay.url:
        return "is [relay] url: it must be the relay log of the other direction"
    if not isinstance(settings.target, type(settings.downstream)):
        return f"is for databases, and [downstream] type is {settings.downstream.type}"
    if not settings.downstream.loopback_control:
        return "needs [downstream] loopback-control = true in both directions"
    if settings.apply.mode != "atomic":
        return f"needs [apply] mode = 'atomic', not {settings.apply.mode!r}"
    if settings.routes.rules:
        return "can't be used with [[route]]: a row would have another name on each side"
    return f"can't be used with {shaping}: rows would differ on the two sides" if shaping else ""
