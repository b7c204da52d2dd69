"""Columns that look like personal data, by their names and by the shape of their values."""

from __future__ import annotations

import pytest

from sluice.expectations.personal_data import kind_by_name, kind_by_values

HITS = {
    "email": "email E_MAIL eMail emailAddress customer_email MailAdresse contact_email_address2",
    "phone": "phone tel Telefon mobile_phone phoneNumber handynummer fax_number home_phone_1",
    "name": (
        "username user_name firstName last_name surname Vorname nachname customerName full_name"
        " KontoInhaber middle_name benutzername cardholder_name"
    ),
    "address": (
        "address street shippingAddress address_line_1 Straße hausnummer plz zip zip_code"
        " postal_code billing_address_2 ADRESSE"
    ),
    "birth": "birthday birth_date dateOfBirth dob Geburtsdatum geburtstag",
    "iban": "iban customer_iban accountNumber kontonummer creditCardNumber",
    "ssn": "ssn socialSecurityNumber tax_id Steuernummer steuer_id national_id",
    "passport": "passport passport_no passportNumber Reisepass passport_id Führerschein",
    "ip": "ip ip_address clientIp ipv4 last_ip_addr remote_addr mac_address",
}
MISSES = (
    "id filename file_name product_name table_name hostname host_address memory_address web_address"
    " zipped shipping description email_verified is_email has_phone phone_type email_count"
    " mailing_list hotel telnet address_id birthrate passed tripname ship clip equipment"
    " email_template mail_server recipe state city total price created_at emailed_at title"
    " street_view can_mobile passport_country tag namespace rename"
)


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for kind, names in HITS.items() for name in names.split()]
)
def test_a_name_says_what_it_holds(name: str, kind: str) -> None:
    assert kind_by_name(name, "t") == kind


@pytest.mark.parametrize("name", dict.fromkeys(MISSES.split()))
def test_a_name_that_holds_such_letters_says_nothing(name: str) -> None:
    assert kind_by_name(name, "customers") == ""


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        ("customers", "name"),
        ("crm_person", "name"),
        ("Kunden", "name"),
        ("users_2024", "name"),
        ("products", ""),
        ("user_groups", ""),
        ("countries", ""),
    ],
)
def test_a_name_by_itself_is_one_in_a_table_of_people(table: str, kind: str) -> None:
    assert kind_by_name("name", table) == kind


IBANS = ["DE89370400440532013000", "GB82 WEST 1234 5698 7654 32", "FR1420041010050500013M02606"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["ann@example.org", "b.c@mail.example.com"] * 4, "email"),
        (["ann@example.org"] * 8 + ["", "none", "?"], "email"),
        (["ann@example.org"] * 4, ""),  # too few
        (["ann@example.org"] * 5 + ["none"] * 3, ""),
        (["@home", "see you @ 5", "a@b"] * 3, ""),
        (["+49 30 123456", "(030) 123-456", "0049301234567 8"] * 3, "phone"),
        (["0001234567", "0001234568"] * 4, ""),  # numbers of orders
        (["01.02.2003", "02/03/2004"] * 4, ""),
        (["2026-11-28 18:00:00"] * 8, ""),
        (IBANS * 2, "iban"),
        ([iban[:-1] + "9" for iban in IBANS] * 2, ""),  # the check digits are wrong
        (["DE89370400440532013000X"] * 6, ""),
        ([], ""),
    ],
)
def test_values_have_the_shape_of_a_kind(values: list[str], kind: str) -> None:
    found, share = kind_by_values(values)
    assert found == kind
    assert (share >= 0.8) is bool(kind)
