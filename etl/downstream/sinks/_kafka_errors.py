"""Know librdkafka's errors: which are for good, and what hides behind one."""

from __future__ import annotations

import contextlib

from confluent_kafka import KafkaError, KafkaException, Producer

from sluice.errors import SluiceError

FENCED_ERRORS = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
}
TOO_LARGE_ERRORS = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}
REFUSED_ERRORS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError._INVALID_ARG,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
}


class KafkaUnavailableError(SluiceError, OSError):
    """Brokers can't be reached, or don't answer in time: connecting again may help."""

    transient = True
    hint = "start the brokers, or correct [kafka] brokers"
    topic = ""
    """The topic that the error is about, if it is about one."""


def code_of(error: BaseException) -> int | None:
    """Return the code of an error of the client; None of another one."""
    return error.args[0].code() if isinstance(error, KafkaException) else None


def refusal_in(error: BaseException) -> BaseException | None:
    """Return the refusal by brokers that an error is, or hides; None if it is another.

    What the client raises while it calls back is the cause of a SystemError of Python's.
    """
    for found in (error, error.__cause__):
        if found is not None and code_of(found) in REFUSED_ERRORS:
            return found
    return None


def error_reason(producer: Producer, error: BaseException) -> BaseException:
    """Return the cause of an error that only reports that something is wrong.

    Such an error is a message thrown away, or, when the producer is broken for good while the
    client calls back, a SystemError of Python's. A broken producer names the reason at the next
    call.
    """
    code = code_of(error)
    if code not in (
        None,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._STATE,
        KafkaError._FATAL,
    ):
        return error
    try:
        producer.begin_transaction()
    except (KafkaException, SystemError) as found:
        # a transaction that must be aborted refuses this by its reason, which an abort forgets
        if refusal_in(found):
            return found
    try:
        producer.abort_transaction(1)
    except KafkaException as found:
        if code_of(found) != KafkaError._NOT_CONFIGURED:  # at least once there are no transactions
            return found
    except SystemError:
        pass
    return error if code is not None else KafkaUnavailableError(str(error))


def abandon(producer: Producer) -> None:
    """Give up a producer with what it has not delivered. Never raises."""
    with contextlib.suppress(KafkaException, RuntimeError):
        producer.purge()
        producer.poll(0)
