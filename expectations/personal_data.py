"""Tell by a column's name, or by the shape of its values, that it may hold personal data.

A name is read as words, whose borders are underscores, digits and capitals, in English and German.
The longest run of words that is a known term counts: `ip_address` is an IP address, `filename` no
name. Values are looked at in Python and never kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

__all__ = ["KINDS", "kind_by_name", "kind_by_values"]

KINDS = ("email", "phone", "name", "address", "birth", "iban", "ssn", "passport", "ip")
"""Kinds of personal data."""

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_FOLDED = str.maketrans(
    {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue"}
)
_MAX_TERM_WORDS = 4

_PEOPLE = """
    accountholder ansprechpartner applicant author beneficiary benutzer buyer cardholder client
    contact creditor customer debtor driver employee empfaenger fahrer guest holder inhaber
    kontoinhaber kunde kunden lead member mitarbeiter mitglied mitglieder nutzer owner passenger
    patient patienten people person personen prospect recipient schueler seller sender spouse
    student teacher user versicherte versicherter worker
"""
_NAMES = """
    first last full given family middle nick sur fore maiden birth display real legal login vor nach
    familien geburts zu ruf
"""
_TERMS = {
    "email": "email mail emailaddress mailaddress emailaddr emailadresse mailadresse",
    "phone": """
        phone phonenumber phoneno telephone telephonenumber tel telno telefon telefonnummer
        telefonnr mobile mobilenumber mobilephone mobil mobilnummer mobiltelefon handy handynummer
        rufnummer cellphone cellnumber fax faxnumber faxnummer msisdn whatsapp
    """,
    "name": "cardholder kontoinhaber ansprechpartner "
    + " ".join(f"{word}name" for word in (_NAMES + _PEOPLE).split()),
    "address": """
        address addressline addr adresse anschrift street streetname streetaddress strasse
        strassenname hausnummer hausnr housenumber postcode postalcode zip zipcode plz postleitzahl
        wohnort deliveryaddress billingaddress lieferadresse rechnungsadresse
    """,
    "birth": """
        birth birthday birthdate birthyear dateofbirth dob born yearofbirth placeofbirth birthplace
        geburt geburtstag geburtsdatum geburtsjahr geburtsort geboren geborenam
    """,
    "iban": """
        iban accountnumber accountno bankaccount bankaccountnumber kontonummer kontonr creditcard
        creditcardnumber cardnumber ccnumber kreditkarte kreditkartennummer bankverbindung
    """,
    "ssn": """
        ssn socialsecurity socialsecuritynumber socialinsurancenumber nationalid nationalidnumber
        nino taxid taxnumber taxidnumber steuernummer steuerid sozialversicherungsnummer svnr
        svnummer rentenversicherungsnummer idcard idcardnumber ausweisnummer personalausweis
        personalausweisnummer
    """,
    "passport": """
        passport passportid passportnumber passportno reisepass reisepassnummer passnummer
        drivinglicence drivinglicense driverslicense driverlicense drivinglicencenumber
        fuehrerschein fuehrerscheinnummer
    """,
    "ip": "ip ipv ipaddr ipaddress ipadresse remoteaddr clientip macaddress macadresse",
    # what holds such a word and isn't about people
    "": """
        webaddress urladdress hostaddress hostaddr serveraddress memoryaddress contractaddress
        walletaddress tokenaddress bindaddress bindaddr listenaddress listenaddr peeraddr
        mailserver mailtemplate phonemodel mobileapp ipblock streetview
    """,
}
_KINDS = {term: kind for kind, terms in _TERMS.items() for term in terms.split()}
_OF_PEOPLE = frozenset(_PEOPLE.split())
_OF_THINGS = """
    id ids type typ kind count anzahl status state flag verified confirmed enabled allowed valid
    sent at ts time format template provider subject body version score rate limit quota code domain
    country land hash host port server queue model source opened clicked bounced
"""
"""Last words of a name that make a column one about the datum instead: `email_verified_at`."""
_QUESTIONS = "is has had can num count allow allows wants ist hat darf anzahl"
_LAST_WORDS, _FIRST_WORDS = frozenset(_OF_THINGS.split()), frozenset(_QUESTIONS.split())

_MIN_VALUES = 5
_MIN_SHARE = 0.8
_EMAIL = re.compile(r"[^@\s]{1,64}@[^@\s.]+(\.[^@\s.]+)+")
_PHONE = re.compile(r"(\+|00|\(?0)[\d\s()/.-]{6,22}")
_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}.*")
_IBAN = re.compile(r"[A-Z]{2}\d{2}[A-Z0-9]{11,30}")


def kind_by_name(column: str, table: str) -> str:
    """Return the kind of personal data that a column's name says it has, "" for none.

    `table`: the name of its table, which a column `name` needs: of `customers`, not of `products`.
    """
    words = _words(column)
    if not words or words[0] in _FIRST_WORDS:
        return ""
    best = ""
    span = (0, 0)
    for first in range(len(words)):
        for behind in range(first + 1, min(first + _MAX_TERM_WORDS, len(words)) + 1):
            term = "".join(words[first:behind])
            if behind - first > span[1] - span[0] and term in _KINDS:
                best, span = _KINDS[term], (first, behind)
    rest = [word for word in words[span[1] :] if not word.isdigit()]
    if span[1] and not (rest and rest[-1] in _LAST_WORDS):
        return best
    return "name" if words == ["name"] and _is_of_people(table) else ""


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name.translate(_FOLDED))]


def _is_of_people(table: str) -> bool:
    last = next((word for word in reversed(_words(table)) if not word.isdigit()), "")
    return last in _OF_PEOPLE or last.removesuffix("s") in _OF_PEOPLE


def kind_by_values(values: Iterable[str]) -> tuple[str, float]:
    """Return the kind of personal data that most of the values have the shape of, and their share.

    ("", 0.0) for none, and for fewer than `_MIN_VALUES` values that aren't empty.
    """
    known = [text for value in values if (text := value.strip())]
    if len(known) >= _MIN_VALUES:
        for kind, has_shape in _SHAPES.items():
            share = sum(map(has_shape, known)) / len(known)
            if share >= _MIN_SHARE:
                return kind, share
    return "", 0.0


def _is_email(text: str) -> bool:
    return _EMAIL.fullmatch(text) is not None


def _is_phone(text: str) -> bool:
    if _PHONE.fullmatch(text) is None or _DATE.fullmatch(text):
        return False
    digits = sum(sign.isdigit() for sign in text)
    return 7 <= digits <= 15 and (text[0] == "+" or digits < len(text))


def _is_iban(text: str) -> bool:
    plain = text.replace(" ", "")
    if _IBAN.fullmatch(plain) is None:
        return False
    return int("".join(str(int(sign, 36)) for sign in plain[4:] + plain[:4])) % 97 == 1


_SHAPES: Mapping[str, Callable[[str], bool]] = {
    "email": _is_email,
    "iban": _is_iban,
    "phone": _is_phone,
}
