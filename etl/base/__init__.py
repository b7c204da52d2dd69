"""Bases: all tables as of one moment, in the archive.

What only the client needs is imported on first use: Spark's workers come through this door, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.base.errors import BaseError
from etl.first_use import on_first_use

if TYPE_CHECKING:
    from etl.base.checking import check_base, forget_base
    from etl.base.plan import BasePlan
    from etl.base.request import AUTO, BaseWish
    from etl.base.run import BaseSummary, cancel_base, create_base, plan_base, run_base

__all__ = [
    "AUTO",
    "BaseError",
    "BasePlan",
    "BaseSummary",
    "BaseWish",
    "cancel_base",
    "check_base",
    "create_base",
    "forget_base",
    "plan_base",
    "run_base",
]

__getattr__ = on_first_use(
    __name__,
    {
        "AUTO": "etl.base.request",
        "BasePlan": "etl.base.plan",
        "BaseSummary": "etl.base.run",
        "BaseWish": "etl.base.request",
        "cancel_base": "etl.base.run",
        "check_base": "etl.base.checking",
        "create_base": "etl.base.run",
        "forget_base": "etl.base.checking",
        "plan_base": "etl.base.run",
        "run_base": "etl.base.run",
    },
)
