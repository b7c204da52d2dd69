/* The compiled kernel of LOAD DATA's text: rows whose values `sluice.tidb.kernel` has found, a line each; and what few changes of
   such rows come to.

   A value that is out of its range, text that isn't utf-8, a value that isn't there and has no default: then the answer is None,
   and the Python code that calls it writes the rows by way of Arrow, or says what is wrong with them. No error is made here.
*/
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EDITION 4 /* as in __init__.py: what was compiled from other sources isn't used */

enum { NIL, COMPACT = 2, FLOAT = 5, DECIMAL, DURATION, VARINT, UVARINT, JSON, ABSENT = 255 }; /* a datum's flags */
/* How a column's values are written; __init__.py has the same numbers. */
enum { GIVEN, SIGNED, UNSIGNED, YEAR, TEXT, BINARY, FIXED, DATE, DATETIME, TIME, ENUM };

typedef unsigned char u8;

static int64_t i64(const void *p, Py_ssize_t i) {
    int64_t v;
    memcpy(&v, (const u8 *)p + 8 * i, 8);
    return v;
}

static int digits_bytes(int digits) { return digits / 9 * 4 + (digits % 9 + 1) / 2; }

typedef struct {
    u8 *bytes;
    size_t size, room;
} Out;

/* Where so many more bytes can be written; NULL without memory. */
static u8 *room(Out *out, size_t more) {
    if (out->size + more > out->room) {
        size_t wanted = (out->size + more) * 2;
        u8 *bytes = realloc(out->bytes, wanted);
        if (!bytes) return NULL;
        out->bytes = bytes, out->room = wanted;
    }
    return out->bytes + out->size;
}

typedef struct {
    uint64_t place, word; /* as in tidb/kernel/compiled.c */
} Cell;

static u8 flag_of(Cell c) { return (u8)(c.place >> 56); }

static uint64_t start_of(Cell c) { return c.place & (((uint64_t)1 << 56) - 1); }

static u8 *put(u8 *to, const void *from, size_t size) {
    memcpy(to, from, size);
    return to + size;
}

static const char PAIRS[] = "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
                            "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";

static u8 *put_two(u8 *to, uint64_t v) { return put(to, PAIRS + 2 * (v % 100), 2); }

/* A number with so many digits at least. */
static u8 *put_number(u8 *to, uint64_t v, int digits) {
    u8 text[20];
    int at = 20;
    for (; v >= 100; v /= 100) at -= 2, memcpy(text + at, PAIRS + 2 * (v % 100), 2);
    if (v >= 10) at -= 2, memcpy(text + at, PAIRS + 2 * v, 2);
    else text[--at] = (u8)('0' + v);
    while (20 - at < digits) text[--at] = '0';
    return put(to, text + at, (size_t)(20 - at));
}

/* The first so many of six digits behind a point. */
static u8 *put_fraction(u8 *to, uint64_t micro, int digits) {
    if (!digits) return to;
    u8 text[20];
    put_number(text, micro, 6);
    *to++ = '.';
    return put(to, text, (size_t)digits);
}

static u8 *put_decimal(u8 *to, const u8 *p) {
    static const uint32_t powers[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000};
    int precision = p[0], fraction = p[1], whole = precision - fraction, is_negative = p[2] < 0x80, is_zero = 1;
    u8 digits[96], *d = digits, flip = is_negative ? 0xFF : 0;
    int left[2] = {whole, fraction};
    p += 2;
    for (int part = 0, first = 0x80; part < 2; part++) {
        while (left[part]) {
            int count = part ? (left[1] < 9 ? left[1] : 9) : (left[0] % 9 ? left[0] % 9 : 9);
            uint32_t value = 0;
            for (int i = digits_bytes(count); i; i--, first = 0) value = value << 8 | (u8)(*p++ ^ flip ^ first);
            if (value >= powers[count]) return NULL;
            is_zero &= !value;
            d = put_number(d, value, count);
            left[part] -= count;
        }
    }
    if (is_negative && !is_zero) *to++ = '-';
    int skipped = 0;
    while (skipped + 1 < whole && digits[skipped] == '0') skipped++;
    if (whole) to = put(to, digits + skipped, (size_t)(whole - skipped));
    else *to++ = '0';
    if (!fraction) return to;
    *to++ = '.';
    return put(to, digits + whole, (size_t)fraction);
}

/* fsp below 0: the date alone. */
static u8 *put_time(u8 *to, uint64_t packed, int fsp) {
    uint64_t micro = packed & 0xFFFFFF, rest = packed >> 24, year = (rest >> 22) / 13;
    uint64_t hour = rest >> 12 & 31, minute = rest >> 6 & 63, second = rest & 63;
    if (year > 9999 || hour > 23 || minute > 59 || second > 59 || micro > 999999) return NULL;
    to = put_two(put_two(to, year / 100), year), *to++ = '-';
    to = put_two(to, (rest >> 22) % 13), *to++ = '-';
    to = put_two(to, rest >> 17 & 31);
    if (fsp < 0) return to;
    *to++ = ' ', to = put_two(to, hour), *to++ = ':';
    to = put_two(to, minute), *to++ = ':';
    return put_fraction(put_two(to, second), micro, fsp);
}

static u8 *put_duration(u8 *to, int64_t nanoseconds, int fsp) {
    uint64_t micro = (nanoseconds < 0 ? 0 - (uint64_t)nanoseconds : (uint64_t)nanoseconds) / 1000, seconds = micro / 1000000;
    if (seconds >= 839 * 3600) return NULL;
    if (nanoseconds < 0) *to++ = '-';
    to = put_number(to, seconds / 3600, 2), *to++ = ':';
    to = put_two(to, seconds / 60 % 60), *to++ = ':';
    return put_fraction(put_two(to, seconds % 60), micro % 1000000, fsp);
}

/* The length of the utf-8 sequence at p, which isn't ASCII; 0 if it is none. */
static int sequence(const u8 *p, const u8 *end) {
    int size = *p >= 0xF0 ? 4 : *p >= 0xE0 ? 3 : 2;
    if (*p < 0xC2 || *p > 0xF4 || end - p < size) return 0;
    for (int i = 1; i < size; i++)
        if ((p[i] & 0xC0) != 0x80) return 0;
    if ((*p == 0xE0 && p[1] < 0xA0) || (*p == 0xED && p[1] > 0x9F) || (*p == 0xF0 && p[1] < 0x90) || (*p == 0xF4 && p[1] > 0x8F)) return 0;
    return size;
}

#define ONES 0x0101010101010101u
#define TOPS 0x8080808080808080u

/* Whether a byte of the word is 0. */
static uint64_t has_zero(uint64_t w) { return (w - ONES) & ~w & TOPS; }

/* Text with a backslash before, and a letter for, each byte that has one in `escapes`, which are \ \t \n and \0 at most; NULL
   if it isn't utf-8. There is room for twice its length. */
static u8 *put_text(u8 *to, const u8 *p, const u8 *end, const u8 *escapes) {
    while (p < end) {
        uint64_t w;
        if (end - p >= 8) {
            memcpy(&w, p, 8);
            if (!((w & TOPS) | has_zero(w) | has_zero(w ^ '\\' * ONES) | has_zero(w ^ '\t' * ONES) | has_zero(w ^ '\n' * ONES))) {
                to = put(to, p, 8), p += 8;
                continue;
            }
        }
        if (*p >= 0x80) {
            int size = sequence(p, end);
            if (!size) return NULL;
            to = put(to, p, (size_t)size), p += size;
        } else {
            u8 letter = escapes[*p];
            if (letter) *to++ = '\\', *to++ = letter;
            else *to++ = *p;
            p++;
        }
    }
    return to;
}

static int is_utf8(const u8 *p, const u8 *end) {
    while (p < end) {
        int size = *p < 0x80 ? 1 : sequence(p, end);
        if (!size) return 0;
        p += size;
    }
    return 1;
}

static u8 *put_hex(u8 *to, const u8 *p, const u8 *end) {
    for (; p < end; p++) *to++ = (u8)"0123456789ABCDEF"[*p >> 4], *to++ = (u8)"0123456789ABCDEF"[*p & 15];
    return to;
}

typedef struct {
    int code, fsp, is_hex;
    const u8 *missing;    /* what stands for a value that isn't there */
    Py_ssize_t missing_size;
    PyObject *names;      /* of an ENUM, as they are written */
    Py_buffer offsets, text; /* of GIVEN ones: each row's field */
} Column;

static void release(Column *columns, Py_ssize_t count) {
    for (Py_ssize_t s = 0; s < count; s++) {
        if (columns[s].offsets.obj) PyBuffer_Release(&columns[s].offsets);
        if (columns[s].text.obj) PyBuffer_Release(&columns[s].text);
    }
    free(columns);
}

/* From tuples (code, digits behind the point, missing or None, names or None, offsets or None, text or None); NULL with an error. */
static Column *columns_of(PyObject *specs, Py_ssize_t rows) {
    Py_ssize_t count = PyTuple_Size(specs);
    Column *columns = calloc((size_t)count + 1, sizeof(Column));
    if (!columns) return (Column *)PyErr_NoMemory();
    for (Py_ssize_t s = 0; s < count; s++) {
        Column *c = columns + s;
        PyObject *offsets, *text;
        if (!PyArg_ParseTuple(PyTuple_GetItem(specs, s), "iiz#OOO", &c->code, &c->fsp, &c->missing, &c->missing_size, &c->names, &offsets, &text))
            goto failed;
        if (c->code == GIVEN) {
            if (PyObject_GetBuffer(offsets, &c->offsets, PyBUF_SIMPLE) || PyObject_GetBuffer(text, &c->text, PyBUF_SIMPLE)) goto failed;
            if (c->offsets.len < 8 * (rows + 1)) goto wrong;
            for (Py_ssize_t i = 0; i < rows; i++)
                if (i64(c->offsets.buf, i) < 0 || i64(c->offsets.buf, i) > i64(c->offsets.buf, i + 1)) goto wrong;
            if (i64(c->offsets.buf, rows) > c->text.len) goto wrong;
        }
        if (c->fsp > 6 || (c->code == ENUM && !PyTuple_Check(c->names))) goto wrong;
    }
    return columns;
wrong:
    PyErr_SetString(PyExc_ValueError, "a column that can't be written");
failed:
    release(columns, count);
    return NULL;
}

/* Writes one value; NULL where it can't be. `room` is kept before for what a number, a moment or twice the bytes take. */
static u8 *put_value(u8 *to, const Column *c, u8 flag, uint64_t word, const u8 *bytes, const u8 *escapes) {
    switch (c->code) {
    case SIGNED:
        if (flag == UVARINT && word >> 63) return NULL;
        if (flag != UVARINT && word >> 63) *to++ = '-', word = 0 - word;
        return put_number(to, word, 1);
    case UNSIGNED: return put_number(to, word, 1);
    case YEAR: return word > 9999 ? NULL : put_number(to, word, 4);
    case TEXT: return put_text(to, bytes, bytes + word, escapes);
    case BINARY: return c->is_hex ? put_hex(to, bytes, bytes + word) : put_text(to, bytes, bytes + word, escapes);
    case FIXED: return put_decimal(to, bytes);
    case DATE: return put_time(to, word, -1);
    case DATETIME: return put_time(to, word, c->fsp);
    case TIME: return put_duration(to, (int64_t)word, c->fsp);
    default: return NULL;
    }
}

static int fits(int code, u8 flag) {
    switch (code) {
    case SIGNED: case UNSIGNED: case YEAR: return flag == VARINT || flag == UVARINT;
    case TEXT: case BINARY: return flag == COMPACT;
    case FIXED: return flag == DECIMAL;
    case TIME: return flag == VARINT || flag == DURATION;
    case DATE: case DATETIME: case ENUM: return flag == UVARINT;
    default: return 0;
    }
}

/* lines(data, cells, slots, columns, places, escapes) -> (text, int64 offsets of its lines, a byte for each column: is it in hex)
   or None. The columns are those of the first slots. */
static PyObject *lines(PyObject *module, PyObject *args) {
    Py_buffer data, found, places, escapes;
    PyObject *specs, *result = NULL;
    Column *columns = NULL;
    Out out = {NULL, 0, 0};
    u8 *ends = NULL;
    Py_ssize_t slots, count;
    if (!PyArg_ParseTuple(args, "y*y*nO!y*y*", &data, &found, &slots, &PyTuple_Type, &specs, &places, &escapes)) return NULL;
    Py_ssize_t rows = places.len / 8, n = slots > 0 ? found.len / 16 / slots : 0;
    const u8 *base = data.buf, *cells = found.buf;
    uint64_t most = (uint64_t)data.len;
    count = PyTuple_Size(specs);
    if (slots <= 0 || !count || count > slots || found.len != 16 * slots * n || escapes.len != 256) goto wrong;
    if (!(columns = columns_of(specs, rows))) goto done;
    for (Py_ssize_t i = 0; i < rows; i++)
        if (i64(places.buf, i) < 0 || i64(places.buf, i) >= n) goto wrong;
    for (Py_ssize_t s = 0; s < count; s++) { /* bytes of which some are no text are written in hex */
        for (Py_ssize_t i = 0; columns[s].code == BINARY && !columns[s].is_hex && i < rows; i++) {
            Cell cell;
            memcpy(&cell, cells + 16 * (i64(places.buf, i) * slots + s), 16);
            if (flag_of(cell) != COMPACT) continue;
            if (start_of(cell) > most || cell.word > most - start_of(cell)) goto wrong;
            columns[s].is_hex = !is_utf8(base + start_of(cell), base + start_of(cell) + cell.word);
        }
    }
    if (!(ends = malloc(8 * (size_t)(rows + 1)))) goto memory;
    for (Py_ssize_t i = 0; i <= rows; i++) {
        int64_t end = (int64_t)out.size;
        memcpy(ends + 8 * i, &end, 8);
        if (i == rows) break;
        for (Py_ssize_t s = 0; s < count; s++) {
            const Column *c = columns + s;
            Cell cell;
            memcpy(&cell, cells + 16 * (i64(places.buf, i) * slots + s), 16);
            u8 flag = flag_of(cell), *to;
            uint64_t word = cell.word;
            if (c->code == GIVEN || flag == ABSENT) {
                if (c->code != GIVEN && !c->missing) goto refused;
                int64_t from = c->code == GIVEN ? i64(c->offsets.buf, i) : 0;
                size_t size = c->code == GIVEN ? (size_t)(i64(c->offsets.buf, i + 1) - from) : (size_t)c->missing_size;
                if (!(to = room(&out, size + 1))) goto memory;
                to = put(to, (c->code == GIVEN ? (const u8 *)c->text.buf : c->missing) + from, size);
            } else if (flag == NIL) {
                if (!(to = room(&out, 3))) goto memory;
                to = put(to, "\\N", 2);
            } else if (!fits(c->code, flag)) {
                goto refused;
            } else if (c->code == ENUM) {
                PyObject *name = word && word <= (uint64_t)PyTuple_Size(c->names) ? PyTuple_GetItem(c->names, (Py_ssize_t)word - 1) : NULL;
                char *text;
                Py_ssize_t size;
                if (!name) goto refused;
                if (PyBytes_AsStringAndSize(name, &text, &size)) goto done;
                if (!(to = room(&out, (size_t)size + 1))) goto memory;
                to = put(to, text, (size_t)size);
            } else {
                const u8 *bytes = NULL;
                if (flag == COMPACT || flag == DECIMAL) {
                    if (start_of(cell) > most || word > most - start_of(cell)) goto wrong;
                    bytes = base + start_of(cell);
                    if (flag == DECIMAL && (word < 3 || *bytes > 81 || bytes[1] > *bytes
                                            || word != 2 + (uint64_t)(digits_bytes(*bytes - bytes[1]) + digits_bytes(bytes[1]))))
                        goto wrong;
                }
                if (!(to = room(&out, 96 + (flag == COMPACT ? 2 * (size_t)word : 0)))) goto memory;
                if (!(to = put_value(to, c, flag, word, bytes, escapes.buf))) goto refused;
            }
            *to++ = s + 1 < count ? '\t' : '\n';
            out.size = (size_t)(to - out.bytes);
        }
    }
    PyObject *hex = PyBytes_FromStringAndSize(NULL, count);
    for (Py_ssize_t s = 0; hex && s < count; s++) PyBytes_AsString(hex)[s] = (char)columns[s].is_hex;
    if (hex) result = Py_BuildValue("(y#y#N)", out.bytes, (Py_ssize_t)out.size, ends, 8 * (rows + 1), hex);
    goto done;
refused:
    result = Py_NewRef(Py_None);
    goto done;
memory:
    PyErr_NoMemory();
    goto done;
wrong:
    PyErr_SetString(PyExc_ValueError, "cells of other data");
done:
    if (columns) release(columns, count);
    free(out.bytes), free(ends);
    PyBuffer_Release(&data), PyBuffer_Release(&found), PyBuffer_Release(&places), PyBuffer_Release(&escapes);
    return result;
}

enum { FEW = 64 }; /* changes; __init__.py has the same number */

/* Whether two cells of a key are the same value; -1 where that takes a closer look. */
static int same_key(const Py_buffer *data, Cell a, Cell b) {
    u8 flag = flag_of(a), other = flag_of(b);
    /* An unsigned handle is a VARINT in rows that come, and an UVARINT in others. */
    if ((flag == VARINT || flag == UVARINT) && (other == VARINT || other == UVARINT)) return a.word == b.word;
    if (flag != other) return -1;
    uint64_t most = (uint64_t)data->len, p = start_of(a), q = start_of(b);
    if (flag != COMPACT || p > most || a.word > most - p || q > most || b.word > most - q) return -1;
    return a.word == b.word && (!a.word || !memcmp((const u8 *)data->buf + p, (const u8 *)data->buf + q, (size_t)a.word));
}

typedef struct {
    const u8 *row;      /* an image with the key */
    uint64_t order;
    int64_t first, now; /* the first old image, -1 if a new one came before; the last new one, -1 if an old one came behind */
} Key;

typedef struct {
    const Py_buffer *data;
    const Py_buffer *cells; /* of old images and of new ones */
    Py_ssize_t slots, width;
    const void *key; /* the slots of the key */
    int64_t at[2];   /* how many images of either came before */
    Key found[2 * FEW];
} Net;

enum { REFUSED = -1, WRONG = -2 };

/* The keys of one table's changes, into `found`; how many there are, REFUSED or WRONG. */
static Py_ssize_t keys_of(Net *net, const u8 *kinds, Py_ssize_t changes) {
    Py_ssize_t keys = 0;
    int is_number = net->width == 1, is_refused = changes > FEW;
    Key *found = net->found;
    for (Py_ssize_t change = 0; change < changes; change++) {
        u8 kind = kinds[change];
        for (int is_new = kind == 0; is_new < (kind == 2 ? 1 : 2); is_new++) { /* 0 insert, 1 update, 2 delete */
            if (kind > 2 || (net->at[is_new] + 1) * net->slots * 16 > net->cells[is_new].len) return WRONG;
            int64_t at = net->at[is_new]++;
            if (is_refused) continue; /* its images are passed over */
            const u8 *row = (const u8 *)net->cells[is_new].buf + 16 * net->slots * at;
            Py_ssize_t i = 0;
            for (int same = 0; i < keys && !same; i += !same) {
                same = 1;
                for (Py_ssize_t k = 0; k < net->width && same > 0; k++) {
                    Cell a, b;
                    memcpy(&a, found[i].row + 16 * i64(net->key, k), 16);
                    memcpy(&b, row + 16 * i64(net->key, k), 16);
                    same = same_key(net->data, a, b);
                }
                is_refused |= same < 0;
            }
            if (i == keys) {
                Cell own;
                memcpy(&own, row + 16 * i64(net->key, 0), 16);
                is_refused |= !keys && same_key(net->data, own, own) < 0;
                is_number &= flag_of(own) != COMPACT;
                found[keys++] = (Key){row, own.word ^ (uint64_t)1 << 63, is_new ? -1 : at, is_new ? at : -1};
            } else {
                is_refused |= (found[i].now >= 0) == is_new; /* they can't follow one another */
                found[i].now = is_new ? at : -1;
            }
        }
    }
    for (Py_ssize_t i = 1; is_number && i < keys; i++)
        for (Py_ssize_t j = i; j && found[j].order < found[j - 1].order; j--) {
            Key other = found[j];
            found[j] = found[j - 1], found[j - 1] = other;
        }
    return is_refused ? REFUSED : keys;
}

/* net(data, old cells, new cells, slots, key slots, kinds, ends) -> (gone old, new only, kept old, kept new, counts): int64 places of
   images, table by table, and how many of the first three each table has, -1 for one that is refused. `ends`: how many changes there
   are up to the end of each. Keys that are one number come in their order, others as they are met first. */
static PyObject *net(PyObject *module, PyObject *args) {
    Py_buffer data, cells[2], slots_of_key, kinds, ends;
    Py_ssize_t slots, counts[4] = {0, 0, 0, 0};
    PyObject *result = NULL;
    int64_t *places[4] = {NULL, NULL, NULL, NULL}, *counted = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*ny*y*y*", &data, cells, cells + 1, &slots, &slots_of_key, &kinds, &ends)) return NULL;
    Py_ssize_t width = slots_of_key.len / 8, tables = ends.len / 8, begin = 0;
    if (slots <= 0 || !width || cells[0].len % (16 * slots) || cells[1].len % (16 * slots)) goto wrong;
    for (Py_ssize_t k = 0; k < width; k++)
        if (i64(slots_of_key.buf, k) < 0 || i64(slots_of_key.buf, k) >= slots) goto wrong;
    if (!(counted = malloc(24 * (size_t)tables + 1))) goto memory;
    for (int part = 0; part < 4; part++) /* an update of a key is two changes of keys */
        if (!(places[part] = malloc(16 * (size_t)kinds.len + 1))) goto memory;
    Net one = {&data, cells, slots, width, slots_of_key.buf, {0, 0}, {{NULL, 0, 0, 0}}};
    for (Py_ssize_t t = 0; t < tables; t++) {
        Py_ssize_t end = (Py_ssize_t)i64(ends.buf, t), before[3] = {counts[0], counts[1], counts[2]};
        if (end < begin || end > kinds.len) goto wrong;
        Py_ssize_t keys = keys_of(&one, (const u8 *)kinds.buf + begin, end - begin);
        if (keys == WRONG) goto wrong;
        for (Py_ssize_t i = 0; i < keys; i++) {
            int64_t first = one.found[i].first, now = one.found[i].now;
            if (first >= 0 && now < 0) places[0][counts[0]++] = first;
            if (first < 0 && now >= 0) places[1][counts[1]++] = now;
            if (first >= 0 && now >= 0) places[2][counts[2]++] = first, places[3][counts[3]++] = now;
        }
        for (int part = 0; part < 3; part++) counted[3 * t + part] = keys == REFUSED ? -1 : (int64_t)(counts[part] - before[part]);
        begin = end;
    }
    if (begin != kinds.len) goto wrong;
    result = Py_BuildValue("(y#y#y#y#y#)", places[0], 8 * counts[0], places[1], 8 * counts[1], places[2], 8 * counts[2], places[3], 8 * counts[3],
                           counted, 24 * tables);
    goto done;
memory:
    PyErr_NoMemory();
    goto done;
wrong:
    PyErr_SetString(PyExc_ValueError, "cells of other changes");
done:
    for (int part = 0; part < 4; part++) free(places[part]);
    free(counted);
    PyBuffer_Release(&data), PyBuffer_Release(cells), PyBuffer_Release(cells + 1), PyBuffer_Release(&slots_of_key), PyBuffer_Release(&kinds);
    PyBuffer_Release(&ends);
    return result;
}

static PyMethodDef functions[] = {
    {"lines", lines, METH_VARARGS, NULL},
    {"net", net, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_compiled", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__compiled(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "EDITION", EDITION)) Py_CLEAR(module);
    return module;
}
