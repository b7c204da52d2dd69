"""The cases that the formats' published behaviour gives, each with the tests that cover it.

Values in them are those of TiCDC's own tests and documents, and of Debezium's, for the row of
`orders`. A case without tests has the reason in MISSING.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[3]
MESSAGES, SINKS = "etl/changes/messages", "etl/downstream/sinks"
CANAL, DEBEZIUM = f"{MESSAGES}/test_canal_json.py", f"{MESSAGES}/test_debezium_json.py"
AVRO, OPEN = f"{MESSAGES}/test_avro.py", f"{MESSAGES}/test_open_protocol.py"
SIMPLE, HASHES = f"{MESSAGES}/test_simple.py", f"{MESSAGES}/test_partition_hash.py"
FORMATS, TOPICS = f"{SINKS}/test_kafka_formats.py", f"{SINKS}/test_kafka_topics.py"
COPIES = "etl/copy/test_bootstrap_topics.py"
LARGE, KEY_ONLY = f"{SINKS}/test_kafka_large_messages.py", f"{MESSAGES}/test_key_only.py"
METADATA = f"{SINKS}/test_kafka_transaction_metadata.py"
SINK, REGISTRY = f"{SINKS}/test_kafka_sink.py", f"{SINKS}/test_schema_registry.py"

CASES: dict[str, list[tuple[str, str]]] = {
    "canal insert": [
        (CANAL, "test_an_insert_has_ticdcs_fields_in_their_order"),
        (CANAL, "test_without_the_extension_only_its_field_is_missing"),
    ],
    "canal update": [(CANAL, "test_an_update_has_the_whole_old_row_or_the_changed_columns_alone")],
    "canal delete": [(CANAL, "test_a_delete_has_the_deleted_row_as_data")],
    "canal unsigned": [(CANAL, "test_unsigned_numbers_promote_by_value")],
    "canal binary": [(CANAL, "test_values_are_the_texts_of_the_protocol")],
    "canal DDL": [
        (CANAL, "test_a_ddl_statement_has_canals_type"),
        (TOPICS, "test_a_ddl_statement_is_in_every_partition_of_its_table_between_its_rows"),
    ],
    "canal watermark": [
        (CANAL, "test_a_watermark_is_sent_with_the_extension_alone"),
        (TOPICS, "test_a_watermark_is_in_every_partition_and_nothing_older_comes_behind_it"),
        (
            TOPICS,
            "test_a_control_topic_has_ddl_and_watermarks_and_the_tables_topics_have_none",
        ),
    ],
    "canal floats and bits": [(CANAL, "test_values_are_the_texts_of_the_protocol")],
    "timestamp zone": [
        (CANAL, "test_the_zone_is_named_and_types_have_their_parameters_without_loss"),
        (SIMPLE, "test_a_timestamp_names_its_zone"),
    ],
    "debezium insert": [
        (DEBEZIUM, "test_an_insert_is_the_envelope_alone_without_schemas"),
        (DEBEZIUM, "test_an_insert_as_ticdc_has_its_payload_and_its_values"),
        (
            DEBEZIUM,
            "test_schemas_have_debeziums_names_and_list_the_commit_ts_unless_as_ticdc",
        ),
    ],
    "debezium update": [(DEBEZIUM, "test_an_update_has_both_rows")],
    "debezium delete": [
        (DEBEZIUM, "test_a_tombstone_with_the_same_key_follows_a_delete_unless_as_ticdc")
    ],
    "debezium changed key": [(DEBEZIUM, "test_a_changed_key_is_a_delete_a_tombstone_and_a_create")],
    "debezium dates": [(DEBEZIUM, "test_values_are_debeziums")],
    "debezium NULL beside a default": [(DEBEZIUM, "test_values_are_debeziums")],
    "debezium unsigned and bits": [
        (DEBEZIUM, "test_values_are_debeziums"),
        (DEBEZIUM, "test_the_schemas_type_follows_the_fidelity"),
    ],
    "transaction markers": [
        (
            TOPICS,
            "test_every_change_is_once_in_the_partition_of_its_key_and_in_its_transactions_count",
        ),
        (
            TOPICS,
            "test_every_partition_has_a_tables_schema_before_its_rows_and_markers_count_none",
        ),
        (METADATA, "test_places_count_from_one_to_what_the_end_of_their_transaction_says"),
    ],
    "avro insert": [
        (AVRO, "test_an_insert_has_ticdcs_bytes"),
        (AVRO, "test_the_schemas_are_ticdcs"),
    ],
    "avro delete": [
        (AVRO, "test_a_delete_is_a_tombstone_as_ticdc_and_has_the_row_in_front_of_it_lossless")
    ],
    "avro evolution": [
        (AVRO, "test_an_old_reader_reads_rows_with_a_new_column_and_without_a_dropped_one"),
        (FORMATS, "test_a_refused_schema_leaves_nothing_of_its_transaction_in_the_topic"),
        (FORMATS, "test_a_registry_that_fails_twice_registers_once_and_doubles_no_row"),
        (REGISTRY, "test_a_real_registry_takes_compatible_changes_and_refuses_others"),
    ],
    "open insert": [
        (OPEN, "test_an_insert_is_ticdcs_byte_for_byte"),
        (OPEN, "test_values_are_the_protocols"),
        (OPEN, "test_ddl_and_watermarks_are_messages_of_their_own"),
    ],
    "simple schemas": [
        (SIMPLE, "test_an_insert_has_ticdcs_fields_in_their_order"),
        (SIMPLE, "test_a_bootstrap_comes_first_and_again_by_time_and_by_rows"),
        (SIMPLE, "test_ddl_has_the_schemas_before_and_after_it"),
        (SIMPLE, "test_a_checksum_is_tidbs_of_each_image_and_0_of_the_one_that_is_missing"),
        (
            TOPICS,
            "test_every_partition_has_a_tables_schema_before_its_rows_and_markers_count_none",
        ),
    ],
    "dispatch": [
        (HASHES, "test_a_key_has_the_partition_that_ticdc_gives_it"),
        (HASHES, "test_columns_in_any_order_have_the_partition_of_ticdcs_own_tests"),
        (HASHES, "test_null_and_enum_are_hashed_as_their_text"),
    ],
    "topics": [
        (HASHES, "test_a_topic_has_the_name_that_kafka_takes"),
        (TOPICS, "test_two_tables_that_would_share_a_topic_of_their_own_are_both_named"),
    ],
    "exactly once": [
        (TOPICS, "test_kill_9_at_any_time_leaves_each_transaction_whole_and_once_in_all_topics"),
        (TOPICS, "test_a_process_that_was_replaced_cannot_send_any_more"),
        (SINK, "test_kill_9_at_any_time_leaves_no_gap_and_nothing_twice"),
    ],
    "repartitioning": [(TOPICS, "test_a_topic_that_grew_is_refused_until_the_settings_say_so")],
    "snapshot": [
        (COPIES, "test_rows_are_reads_at_the_snapshots_moment_and_a_watermark_ends_them"),
        (COPIES, "test_kill_9_at_any_time_leaves_each_row_and_each_change_once"),
    ],
    "size": [
        (SINK, "test_a_transaction_above_the_limit_is_named_with_the_ways_out"),
        (LARGE, "test_a_row_above_the_topics_limit_is_refused_with_its_key_and_the_settings"),
        (LARGE, "test_a_claim_check_has_the_whole_message_and_its_topic_the_key"),
        (LARGE, "test_a_transaction_that_is_sent_again_replaces_its_files"),
        (KEY_ONLY, "test_canal_json_has_the_primary_key_alone"),
    ],
}
MISSING = {
    "snapshot": "no row is marked as the last one: the watermark is",
    "open insert": "a message has one row",
}
"""Cases, or parts of them, without a test."""


@pytest.mark.parametrize("case", CASES)
def test_each_published_case_has_a_test_or_a_reason(case: str) -> None:
    assert CASES[case] or MISSING[case]
    for path, name in CASES[case]:
        text = (TESTS / path).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", text, re.MULTILINE), f"{path} has no {name}"
