"""Check whether this version of Sluice can take over from the one that is running."""

from sluice.etl.operate.upgrade.check import UpgradeReport, check_upgrade

__all__ = ["UpgradeReport", "check_upgrade"]
