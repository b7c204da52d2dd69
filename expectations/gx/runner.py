"""Check a suite by Great Expectations.

All expectations are first asked for a yes or no alone: their counts then come from one statement
over the table. Only those that aren't met are asked again, for what is wrong and examples of it.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import great_expectations as gx
from great_expectations.core import ExpectationSuiteValidationResult, ExpectationValidationResult
from great_expectations.data_context import AbstractDataContext
from great_expectations.data_context.types.base import (
    DataContextConfig,
    InMemoryStoreBackendDefaults,
)
from great_expectations.expectations.registry import get_expectation_impl

from sluice.expectations.gx.custom import FOUND, OWN, Found, OwnExpectation
from sluice.expectations.gx.examples import MAX_EXAMPLES, as_json
from sluice.expectations.gx.replication import OF_REPLICATION
from sluice.expectations.gx.source import Batches, no_rows
from sluice.expectations.suite import REPLICATION, Expectation, Suite, SuiteError
from sluice.relay.quality import FailedExpectation

__all__ = ["SuiteResult", "SuiteRunner", "observed"]

log = logging.getLogger("sluice.quality")

_GX_SEVERITIES = {"warn": "warning", "fail": "critical", "pause": "critical"}
_NUMBER = "number"


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """A suite result.

    `result`: for the Data Docs, one result an expectation, in the suite's order.
    """

    suite: Suite
    result: ExpectationSuiteValidationResult
    failures: tuple[FailedExpectation, ...]


class SuiteRunner:
    """One context of Great Expectations, in memory: for one task."""

    def __init__(self) -> None:
        warnings.filterwarnings("ignore", module=r"great_expectations(\.|\Z)")
        logging.getLogger("great_expectations").setLevel(logging.ERROR)
        in_memory = DataContextConfig(
            store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False)
        )
        self.context: AbstractDataContext = gx.get_context(
            mode="ephemeral", project_config=in_memory
        )
        self.context.variables.progress_bars = {"globally": False, "metric_calculations": False}

    def look(self, suite: Suite, batches: Batches | None, keys: Sequence[str] = ()) -> SuiteResult:
        """Check a suite and return its result; `batches` None: it isn't about rows.

        `keys`: the columns that name a row. Raises SuiteError, QualityError, errors of the place.
        """
        built = [
            _build_expectation(suite, number, one) for number, one in enumerate(suite.expectations)
        ]
        batch = (
            batches.of(self.context, suite.name)
            if batches is not None
            else no_rows(self.context, suite.name)
        )
        own: dict[int, Found] = {}
        FOUND.set(own)
        first = self._validated(suite.name, built, batch, {"result_format": "BOOLEAN_ONLY"})
        again = [
            one
            for one, result in zip(built, first, strict=True)
            if not result.success
            and not isinstance(one, OwnExpectation)
            and not _exception_text(result)
        ]
        details = {"result_format": "SUMMARY", "partial_unexpected_count": MAX_EXAMPLES}
        with_keys = details | {
            "unexpected_index_column_names": list(keys),
            "return_unexpected_index_query": False,
        }
        found = (
            self._validated(suite.name, again, batch, with_keys if keys else details)
            if again
            else []
        )
        by_number = {_number_of(result): result for result in found}
        results = [by_number.get(number, result) for number, result in enumerate(first)]
        for number, one in own.items():
            results[number].result = {"observed_value": one.observed, "examples": list(one.rows)}
        return _suite_result(suite, results)

    def _validated(
        self,
        name: str,
        expectations: list[Any],
        batch: tuple[Any, dict[str, Any]],
        result_format: dict[str, Any],
    ) -> list[ExpectationValidationResult]:
        """Return results in the order of the expectations."""
        definition, parameters = batch
        copies = [copy.copy(one) for one in expectations]
        for one in copies:
            one.id = None  # they belong to no other suite
        suite = self.context.suites.add_or_update(
            gx.ExpectationSuite(name=name, expectations=copies)
        )
        looking = self.context.validation_definitions.add_or_update(
            gx.ValidationDefinition(name=name, data=definition, suite=suite)
        )
        found = looking.run(batch_parameters=parameters or None, result_format=result_format)
        return sorted(found.results, key=_number_of)


def _build_expectation(suite: Suite, number: int, expectation: Expectation) -> Any:
    """Build Great Expectations' own object. Raises SuiteError."""
    arguments = dict(expectation.arguments)
    own = OF_REPLICATION if suite.name == REPLICATION else OWN
    try:
        kind: Any = own.get(expectation.expectation) or get_expectation_impl(
            expectation.expectation
        )
        if issubclass(kind, OwnExpectation):
            arguments["table"] = suite.name
        meta = {_NUMBER: number, "why": expectation.why, "severity": expectation.severity}
        built = kind(**arguments, severity=_GX_SEVERITIES[expectation.severity], meta=meta)
        if isinstance(built, OwnExpectation):
            built.meta = meta | {"says": built.statement()}
    except Exception as error:  # Great Expectations raises many kinds
        raise SuiteError(
            f"{suite.name}: expectation {number + 1}, {expectation.expectation}: {error}"
        ) from error
    return built


def _number_of(result: ExpectationValidationResult) -> int:
    config: Any = result.expectation_config
    return int(config.meta[_NUMBER])


def _exception_text(result: ExpectationValidationResult) -> str:
    """Return the error that prevented the check, "" if there was none."""
    exceptions: Any = result.exception_info or {}
    if "raised_exception" in exceptions:
        exceptions = {"": exceptions}
    return "; ".join(
        sorted(
            {
                str(one.get("exception_message"))
                for one in exceptions.values()
                if one.get("raised_exception")
            }
        )
    )


def _suite_result(suite: Suite, results: list[ExpectationValidationResult]) -> SuiteResult:
    failures = []
    for expectation, result in zip(suite.expectations, results, strict=True):
        error = _exception_text(result)
        result.result = as_json(result.result) or {"observed_value": "as expected"}
        if error:
            result.result = {"observed_value": f"it couldn't be looked at: {error}"}
            result.exception_info = {
                "raised_exception": False,
                "exception_message": None,
                "exception_traceback": None,
            }
        if not result.success:
            failures.append(
                FailedExpectation(
                    expectation.expectation,
                    expectation.about,
                    expectation.severity,
                    observed(result),
                )
            )
    whole = ExpectationSuiteValidationResult(
        success=not failures,
        results=results,
        suite_name=suite.name,
        statistics={
            "evaluated_expectations": len(results),
            "successful_expectations": len(results) - len(failures),
        },
    )
    return SuiteResult(suite, whole, tuple(failures))


def observed(result: ExpectationValidationResult) -> str:
    """Describe what was observed, in words."""
    found: Any = result.result
    if found.get("observed_value") is not None:
        return str(found["observed_value"])
    if found.get("unexpected_count") is not None:
        examples = ", ".join(dict.fromkeys(map(str, found.get("partial_unexpected_list", [])[:5])))
        return (
            f"{int(found['unexpected_count']):,} of {int(found.get('element_count', 0)):,} rows:"
            f" {examples}"
        )
    return "not met"
