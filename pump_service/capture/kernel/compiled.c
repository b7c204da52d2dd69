/* The capture's compiled kernel. `match` finds the prewrites of commits; `convert` and `encode` make rows of a binlog from rows
   as TiKV stores them, a whole transaction in one call.

   It knows the newer row format, keys of records, and what nearly all events are. Whatever is otherwise stops it, and the
   Python code that calls it does that one, or says what is wrong with it: no error is made here.

   A shape tells how the rows of a table are: a byte with the kind of handle, then 7 bytes for each column in the table's
   order: u32 id, form, flag, and the number of the part of the key that holds the value (or IS_HANDLE, NO_PART). */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EDITION 6 /* as in __init__.py: what was compiled from other sources isn't used */

enum { NIL, BYTES, COMPACT, INT, UINT, FLOAT, DECIMAL, DURATION, VARINT, UVARINT };
enum { SIGNED = 1, UNSIGNED, TEXT, FLAGGED }; /* forms */
enum { OF_COLUMN, HIDDEN, OF_PARTS };         /* kinds of handles */
enum { IS_HANDLE = 254, NO_PART, MAX_PARTS = 32, ENTRY = 7, HEAD = 6, VERSION_2 = 0x80, RECORD_PREFIX = 11 };

typedef unsigned char u8;

typedef struct {
    u8 *bytes;
    size_t length, room;
    int is_out_of_memory;
} Out;

static u8 *need(Out *o, size_t more) {
    if (o->room - o->length < more) {
        size_t room = (o->length + more) * 2 + 256;
        u8 *bytes = realloc(o->bytes, room);
        if (!bytes) {
            o->is_out_of_memory = 1;
            return NULL;
        }
        o->bytes = bytes, o->room = room;
    }
    return o->bytes + o->length;
}

static int put(Out *o, const u8 *from, size_t length) {
    u8 *p = need(o, length);
    if (!p) return 0;
    if (length) memcpy(p, from, length);
    o->length += length;
    return 1;
}

static int put_number(Out *o, u8 flag, uint64_t v) {
    u8 *p = need(o, 11);
    if (!p) return 0;
    *p++ = flag;
    for (; v > 0x7F; v >>= 7) *p++ = (u8)(v & 0x7F) | 0x80;
    *p++ = (u8)v;
    o->length = (size_t)(p - o->bytes);
    return 1;
}

static uint64_t zigzag(int64_t v) { return (uint64_t)v << 1 ^ (uint64_t)(v >> 63); }

static uint64_t big64(const u8 *p) {
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) v = v << 8 | p[i];
    return v;
}

static uint32_t little(const u8 *p, int size) {
    uint32_t v = 0;
    for (int i = size; i-- > 0;) v = v << 8 | p[i];
    return v;
}

static int64_t flipped(const u8 *p) { return (int64_t)(big64(p) ^ (uint64_t)1 << 63); }

/* The number in a value of 1, 2, 4 or 8 bytes. */
static int number_of(const u8 *p, size_t size, int is_signed, uint64_t *v) {
    if (size != 1 && size != 2 && size != 4 && size != 8) return 0;
    uint64_t found = 0;
    for (size_t i = size; i-- > 0;) found = found << 8 | p[i];
    if (is_signed && size < 8 && p[size - 1] & 0x80) found |= ~(uint64_t)0 << (8 * size);
    *v = found;
    return 1;
}

/* A row in the newer format. */
typedef struct {
    const u8 *ids, *ends, *data;
    uint32_t count, nulls;
    int id_size, end_size;
} Row;

/* Whether ids can be searched for, from one place to another. */
static int ascends(const Row *r, uint32_t from, uint32_t to) {
    for (uint32_t i = from + 1; i < to; i++) {
        const u8 *id = r->ids + (size_t)i * (size_t)r->id_size;
        if (little(id - r->id_size, r->id_size) >= little(id, r->id_size)) return 0;
    }
    return 1;
}

static int read_row(Row *r, const u8 *p, size_t size) {
    if (size < HEAD || p[0] != VERSION_2) return 0;
    int is_large = p[1] & 1;
    r->count = little(p + 2, 2), r->nulls = little(p + 4, 2);
    r->id_size = is_large ? 4 : 1, r->end_size = is_large ? 4 : 2;
    size_t ids = (size_t)(r->count + r->nulls) * (size_t)r->id_size, ends = (size_t)r->count * (size_t)r->end_size;
    if (size < HEAD + ids + ends) return 0;
    r->ids = p + HEAD, r->ends = r->ids + ids, r->data = r->ends + ends;
    size_t left = size - HEAD - ids - ends;
    uint32_t before = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        uint32_t end = little(r->ends + (size_t)i * (size_t)r->end_size, r->end_size);
        if (end < before || end > left) return 0;
        before = end;
    }
    return ascends(r, 0, r->count) && ascends(r, r->count, r->count + r->nulls);
}

enum { ABSENT, IS_NULL, HAS_VALUE };

/* Ids ascend among those with a value, and among those that are NULL. */
static int search(const Row *r, uint32_t id, uint32_t low, uint32_t high, uint32_t *at) {
    while (low < high) {
        uint32_t middle = low + (high - low) / 2, there = little(r->ids + (size_t)middle * (size_t)r->id_size, r->id_size);
        if (there == id) {
            *at = middle;
            return 1;
        }
        if (there < id) low = middle + 1;
        else high = middle;
    }
    return 0;
}

static int find(const Row *r, uint32_t id, const u8 **value, size_t *size) {
    uint32_t at;
    if (search(r, id, 0, r->count, &at)) {
        const u8 *end = r->ends + (size_t)at * (size_t)r->end_size;
        uint32_t from = at ? little(end - r->end_size, r->end_size) : 0;
        *value = r->data + from, *size = little(end, r->end_size) - from;
        return HAS_VALUE;
    }
    return search(r, id, r->count, r->count + r->nulls, &at) ? IS_NULL : ABSENT;
}

/* The parts of a clustered key as datums of rows, one behind the other. */
typedef struct {
    Out datums;
    size_t begin[MAX_PARTS + 1];
    int is_duration[MAX_PARTS];
    int count;
} Parts;

static size_t decimal_size(u8 precision, u8 fraction) {
    static const u8 sizes[] = {0, 1, 1, 2, 2, 3, 3, 4, 4, 4};
    unsigned whole = precision - fraction;
    return whole / 9 * 4 + sizes[whole % 9] + fraction / 9u * 4 + sizes[fraction % 9u];
}

static int read_parts(Parts *parts, const u8 *p, size_t size) {
    Out *o = &parts->datums;
    const u8 *end = p + size;
    o->length = 0;
    parts->count = 0;
    while (p < end) {
        if (parts->count == MAX_PARTS) return 0;
        int n = parts->count++;
        parts->begin[n] = o->length, parts->is_duration[n] = *p == DURATION;
        size_t left = (size_t)(end - p) - 1;
        switch (*p++) {
        case BYTES: {
            size_t length = 0;
            const u8 *q = p;
            for (;; q += 9) {
                if ((size_t)(end - q) < 9 || q[8] < 0xF7) return 0;
                length += (size_t)(q[8] - 0xF7);
                if (q[8] != 0xFF) break;
            }
            for (int i = q[8] - 0xF7; i < 8; i++)
                if (q[i]) return 0;
            if (!put_number(o, COMPACT, zigzag((int64_t)length))) return 0;
            for (; p < q; p += 9)
                if (!put(o, p, 8)) return 0;
            if (!put(o, q, (size_t)(q[8] - 0xF7))) return 0;
            p = q + 9;
            break;
        }
        case INT:
            if (left < 8 || !put_number(o, VARINT, zigzag(flipped(p)))) return 0;
            p += 8;
            break;
        case UINT:
            if (left < 8 || !put_number(o, UVARINT, big64(p))) return 0;
            p += 8;
            break;
        case FLOAT:
        case DURATION:
            if (left < 8 || !put(o, p - 1, 9)) return 0;
            p += 8;
            break;
        case DECIMAL: {
            if (left < 2 || p[1] > p[0] || p[0] > 81) return 0;
            size_t body = 2 + decimal_size(p[0], p[1]);
            if (left < body || !put(o, p - 1, 1 + body)) return 0;
            p += body;
            break;
        }
        default:
            return 0;
        }
        parts->begin[n + 1] = o->length;
    }
    return parts->count > 0;
}

typedef struct {
    const u8 *entries;
    Py_ssize_t count;
    int handle_kind;
    PyObject *missing; /* a tuple: of each column the datum of rows that are older than it, or None */
    const u8 *handle;
    const Parts *parts;
    Out *out;
} Writing;

static int put_cell(Out *o, int form, u8 flag, const u8 *value, size_t size) {
    uint64_t v;
    switch (form) {
    case SIGNED:
        return number_of(value, size, 1, &v) && put_number(o, VARINT, zigzag((int64_t)v));
    case UNSIGNED:
        return number_of(value, size, 0, &v) && put_number(o, UVARINT, v);
    case TEXT:
        return put_number(o, COMPACT, zigzag((int64_t)size)) && put(o, value, size);
    case FLAGGED:
        return put(o, &flag, 1) && put(o, value, size);
    }
    return 0;
}

static int put_part(Out *o, const Parts *parts, int n) {
    if (n >= parts->count) return 0;
    const u8 *datum = parts->datums.bytes + parts->begin[n];
    if (parts->is_duration[n]) return put_number(o, VARINT, zigzag(flipped(datum + 1)));
    return put(o, datum, parts->begin[n + 1] - parts->begin[n]);
}

/* The datum of a column that the row doesn't hold, behind its id. */
static int put_absent(const Writing *w, Py_ssize_t n, int form, int part) {
    if (part == IS_HANDLE) {
        int64_t number = flipped(w->handle);
        return put_number(w->out, form == UNSIGNED ? UVARINT : VARINT, form == UNSIGNED ? (uint64_t)number : zigzag(number));
    }
    if (part != NO_PART) return put_part(w->out, w->parts, part);
    PyObject *datum = PyTuple_GetItem(w->missing, n);
    char *bytes;
    Py_ssize_t length;
    if (!datum || datum == Py_None || PyBytes_AsStringAndSize(datum, &bytes, &length)) return 0;
    return put(w->out, (u8 *)bytes, (size_t)length);
}

/* The pairs of a row: of an insert those that it holds, else all that TiDB writes. */
static int put_pairs(const Writing *w, const Row *row, int is_insert) {
    static const u8 nil = NIL;
    for (Py_ssize_t n = 0; n < w->count; n++) {
        const u8 *e = w->entries + n * ENTRY, *value = NULL;
        uint32_t id = little(e, 4);
        int form = e[4], part = e[6], done;
        size_t size = 0;
        int found = find(row, id, &value, &size);
        if (found == ABSENT && is_insert) continue;
        if (!put_number(w->out, VARINT, zigzag(id))) return 0;
        if (found == ABSENT || (part == IS_HANDLE && !is_insert)) done = put_absent(w, n, form, part);
        else if (found == IS_NULL) done = put(w->out, &nil, 1);
        else done = put_cell(w->out, form, e[5], value, size);
        if (!done) return 0;
    }
    if (w->handle_kind == HIDDEN && !is_insert)
        return put_number(w->out, VARINT, zigzag(-1)) && put_number(w->out, VARINT, zigzag(flipped(w->handle)));
    return 1;
}

static int bytes_of(PyObject *tuple, Py_ssize_t n, const u8 **p, size_t *size) {
    PyObject *item = PyTuple_GetItem(tuple, n);
    char *bytes;
    Py_ssize_t length;
    if (!item || PyBytes_AsStringAndSize(item, &bytes, &length)) return 0;
    *p = (u8 *)bytes, *size = (size_t)length;
    return 1;
}

enum { FAILED = -1, STOPPED, SKIPPED, WRITTEN };

/* Appends the row of one change to the target's list of its kind. */
static int one(PyObject *change, PyObject *targets, Out *out, Parts *parts) {
    const u8 *key, *value, *old, *shape;
    size_t key_size, value_size, old_size, shape_size;
    static const u8 nil = NIL;
    if (!bytes_of(change, 0, &key, &key_size) || !bytes_of(change, 1, &value, &value_size) || !bytes_of(change, 2, &old, &old_size))
        return FAILED;
    if (key_size <= RECORD_PREFIX || key[0] != 't' || key[9] != '_' || key[10] != 'r') return STOPPED;
    PyObject *physical_id = PyLong_FromLongLong(flipped(key + 1));
    if (!physical_id) return FAILED;
    PyObject *target = PyObject_GetItem(targets, physical_id); /* which may make it */
    Py_DECREF(physical_id);
    if (!target) return FAILED;
    Py_DECREF(target); /* the dict keeps it */
    if (target == Py_None) return SKIPPED;
    if (!bytes_of(target, 0, &shape, &shape_size) || !shape_size) return PyErr_Occurred() ? FAILED : STOPPED;
    if (value_size == old_size && (!value_size || !memcmp(value, old, value_size))) return SKIPPED;

    const u8 *handle = key + RECORD_PREFIX;
    size_t handle_size = key_size - RECORD_PREFIX;
    Writing w = {shape + 1, (Py_ssize_t)(shape_size - 1) / ENTRY, shape[0], PyTuple_GetItem(target, 1), handle, parts, out};
    if (w.handle_kind == OF_PARTS ? !read_parts(parts, handle, handle_size) : handle_size != 8) return STOPPED;
    Row before, after;
    int is_delete = !value_size, is_insert = !old_size;
    if (!is_insert && !read_row(&before, old, old_size)) return STOPPED;
    if (!is_delete && !read_row(&after, value, value_size)) return STOPPED;
    out->length = 0;
    int done;
    if (is_insert) {
        done = w.handle_kind == OF_PARTS ? put(out, parts->datums.bytes, parts->datums.length)
                                         : put_number(out, VARINT, zigzag(flipped(handle)));
        size_t begin = out->length;
        done = done && put_pairs(&w, &after, 1) && (out->length > begin || put(out, &nil, 1));
    } else if (is_delete) {
        done = put_pairs(&w, &before, 0);
    } else {
        done = put_pairs(&w, &before, 0) && put_pairs(&w, &after, 0);
    }
    if (!done || !out->length) return PyErr_Occurred() ? FAILED : STOPPED;
    PyObject *row = PyBytes_FromStringAndSize((char *)out->bytes, (Py_ssize_t)out->length);
    if (!row) return FAILED;
    PyObject *list = PyTuple_GetItem(target, is_delete ? 2 : is_insert ? 4 : 3);
    int failed = !list || PyList_Append(list, row);
    Py_DECREF(row);
    return failed ? FAILED : WRITTEN;
}

/* convert(changes, begin, targets, room) -> (the place of the first change that isn't done, rows, their bytes) */
static PyObject *convert(PyObject *module, PyObject *args) {
    PyObject *changes, *targets, *result = NULL;
    Py_ssize_t begin, room, rows = 0, size = 0;
    if (!PyArg_ParseTuple(args, "O!nO!n", &PyList_Type, &changes, &begin, &PyDict_Type, &targets, &room)) return NULL;
    Out out = {NULL, 0, 0, 0};
    Parts parts = {{NULL, 0, 0, 0}, {0}, {0}, 0};
    Py_ssize_t at = begin, count = PyList_Size(changes);
    int done = WRITTEN;
    for (; at < count && size <= room; at++) {
        PyObject *change = PyList_GetItem(changes, at);
        if (!change) goto end;
        done = one(change, targets, &out, &parts);
        if (done == FAILED) goto end;
        if (done == STOPPED) break;
        if (done == WRITTEN) rows++, size += (Py_ssize_t)out.length;
    }
    if (out.is_out_of_memory || parts.datums.is_out_of_memory) PyErr_NoMemory();
    else result = Py_BuildValue("nnn", at, rows, size);
end:
    free(out.bytes);
    free(parts.datums.bytes);
    return result;
}

/* Sizes and bytes of protobuf's messages: the same code counts and writes, `at` is NULL while it counts. */
typedef struct {
    u8 *at;
    size_t size;
} Message;

static void put_varint(Message *m, uint64_t v) {
    do {
        u8 byte = (u8)(v & 0x7F) | (v > 0x7F ? 0x80 : 0);
        if (m->at) *m->at++ = byte;
        m->size++;
        v >>= 7;
    } while (v);
}

static void put_field(Message *m, u8 tag, uint64_t v) {
    put_varint(m, tag);
    put_varint(m, v);
}

static void put_bytes(Message *m, u8 tag, const char *bytes, size_t length) {
    put_field(m, tag, length);
    if (m->at) memcpy(m->at, bytes, length), m->at += length;
    m->size += length;
}

enum { INSERTED = 0x12, UPDATED = 0x1A, DELETED = 0x32, SEQUENCE = 0x38 };

static int put_rows(Message *m, u8 tag, PyObject *rows) {
    for (Py_ssize_t n = 0, count = PyList_Size(rows); n < count; n++) {
        PyObject *row = PyList_GetItem(rows, n);
        char *bytes;
        Py_ssize_t length;
        if (!row || PyBytes_AsStringAndSize(row, &bytes, &length)) return 0;
        put_bytes(m, tag, bytes, (size_t)length);
    }
    return !PyErr_Occurred();
}

static int put_mutation(Message *m, int64_t table_id, PyObject *lists) {
    static const u8 kinds[] = {4, 1, 0};
    PyObject *deleted = PyTuple_GetItem(lists, 0), *updated = PyTuple_GetItem(lists, 1), *inserted = PyTuple_GetItem(lists, 2);
    put_field(m, 0x08, (uint64_t)table_id);
    if (!deleted || !updated || !inserted) return 0;
    if (!put_rows(m, INSERTED, inserted) || !put_rows(m, UPDATED, updated) || !put_rows(m, DELETED, deleted)) return 0;
    for (int kind = 0; kind < 3; kind++)
        for (Py_ssize_t left = PyList_Size(PyTuple_GetItem(lists, kind)); left > 0; left--) put_field(m, SEQUENCE, kinds[kind]);
    return 1;
}

static int is_empty(PyObject *lists) {
    for (int kind = 0; kind < 3; kind++) {
        PyObject *rows = PyTuple_GetItem(lists, kind);
        if (!rows || PyList_Size(rows)) return 0;
    }
    return 1;
}

static int put_value(Message *m, int64_t version, PyObject *tables) {
    PyObject *id, *lists;
    Py_ssize_t place = 0;
    put_field(m, 0x08, (uint64_t)version);
    while (PyDict_Next(tables, &place, &id, &lists)) {
        if (is_empty(lists)) continue;
        int64_t table_id = PyLong_AsLongLong(id);
        if (PyErr_Occurred()) return 0;
        Message counted = {NULL, 0};
        if (!put_mutation(&counted, table_id, lists)) return 0;
        put_field(m, 0x12, counted.size);
        if (!m->at) m->size += counted.size;
        else if (!put_mutation(m, table_id, lists)) return 0;
    }
    return !PyErr_Occurred();
}

/* encode(start_ts, commit_ts, key, schema version, tables) -> a Prewrite */
static PyObject *encode(PyObject *module, PyObject *args) {
    long long start_ts, commit_ts, version;
    const char *key;
    Py_ssize_t key_size;
    PyObject *tables;
    if (!PyArg_ParseTuple(args, "LLy#LO!", &start_ts, &commit_ts, &key, &key_size, &version, &PyDict_Type, &tables)) return NULL;
    Message value = {NULL, 0}, head = {NULL, 0};
    if (!put_value(&value, version, tables)) return NULL;
    for (PyObject *result = NULL;;) {
        put_field(&head, 0x08, 0), put_field(&head, 0x10, (uint64_t)start_ts), put_field(&head, 0x18, (uint64_t)commit_ts);
        put_bytes(&head, 0x22, key, (size_t)key_size);
        put_field(&head, 0x2A, value.size);
        if (result) {
            if (put_value(&head, version, tables)) {
                put_field(&head, 0x38, 0), put_field(&head, 0x40, 0);
                return result;
            }
            Py_DECREF(result);
            return NULL;
        }
        if (!(result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(head.size + value.size + 4)))) return NULL;
        head.at = (u8 *)PyBytes_AsString(result);
    }
}

/* A row of TiKV's event, cdcpb.Event.Row. */
typedef struct {
    uint64_t start_ts, commit_ts, type, op_type, source, generation;
    const u8 *key, *value, *old;
    size_t key_size, value_size, old_size;
} ChangeRow;

enum { PREWRITE = 1, COMMIT, ROLLBACK, COMMITTED, OP_DELETE = 2 };

static int get_varint(const u8 **p, const u8 *end, uint64_t *v) {
    uint64_t found = 0;
    for (int shift = 0; shift < 64 && *p < end; shift += 7) {
        u8 byte = *(*p)++;
        found |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *v = found;
            return 1;
        }
    }
    return 0;
}

static int get_bytes(const u8 **p, const u8 *end, const u8 **bytes, size_t *size) {
    uint64_t length;
    if (!get_varint(p, end, &length) || length > (uint64_t)(end - *p)) return 0;
    *bytes = *p, *size = (size_t)length;
    *p += length;
    return 1;
}

static int read_change(ChangeRow *r, const u8 *p, const u8 *end) {
    memset(r, 0, sizeof *r);
    while (p < end) {
        int done;
        uint64_t unused;
        switch (*p++) {
        case 0x08: done = get_varint(&p, end, &r->start_ts); break;
        case 0x10: done = get_varint(&p, end, &r->commit_ts); break;
        case 0x18: done = get_varint(&p, end, &r->type); break;
        case 0x20: done = get_varint(&p, end, &r->op_type); break;
        case 0x2A: done = get_bytes(&p, end, &r->key, &r->key_size); break;
        case 0x32: done = get_bytes(&p, end, &r->value, &r->value_size); break;
        case 0x3A: done = get_bytes(&p, end, &r->old, &r->old_size); break;
        case 0x40: done = get_varint(&p, end, &unused); break;
        case 0x48: done = get_varint(&p, end, &r->source); break;
        case 0x50: done = get_varint(&p, end, &r->generation); break;
        default: done = 0;
        }
        if (!done) return 0;
    }
    return 1;
}

static int compare(const u8 *a, size_t a_size, const u8 *b, size_t b_size) {
    size_t size = a_size < b_size ? a_size : b_size;
    int found = size ? memcmp(a, b, size) : 0;
    return found ? found : (a_size > b_size) - (a_size < b_size);
}

typedef struct {
    const u8 *start, *end;
    size_t start_size, end_size;
    uint64_t resolved_ts;
    PyObject *open, *change_type, *prewrite_type; /* borrowed */
    PyObject *counts, *commits;
    uint64_t of_ts; /* of is the dict of this transaction, or NULL */
    PyObject *of;
    uint64_t counted_ts; /* what is to be added for this transaction */
    int64_t counted, counted_size;
    uint64_t commit_ts, start_ts, source; /* of the last list in commits */
    PyObject *list;
} Matching;

/* An instance of a named tuple, whose own constructor is Python's; takes the values' references. */
static PyObject *named(PyObject *type, Py_ssize_t count, PyObject **values) {
    PyObject *plain = PyTuple_New(count), *found = NULL, *args = NULL;
    int has_all = plain != NULL;
    for (Py_ssize_t n = 0; n < count; n++) {
        if (!values[n]) has_all = 0;
        if (plain) PyTuple_SetItem(plain, n, values[n]);
        else Py_XDECREF(values[n]);
    }
    if (has_all && (args = PyTuple_Pack(1, plain))) {
        newfunc make = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
        found = make((PyTypeObject *)type, args, NULL);
    }
    Py_XDECREF(args);
    Py_XDECREF(plain);
    return found;
}

static PyObject *bytes_from(const u8 *p, size_t size) { return PyBytes_FromStringAndSize((const char *)p, (Py_ssize_t)size); }

static PyObject *change_of(const Matching *m, const ChangeRow *r, PyObject *key) {
    PyObject *is_delete = r->op_type == OP_DELETE ? Py_True : Py_False;
    Py_INCREF(key);
    Py_INCREF(is_delete);
    PyObject *values[] = {key, bytes_from(r->value, r->value_size), bytes_from(r->old, r->old_size), is_delete};
    return named(m->change_type, 4, values);
}

static int flush_count(Matching *m) {
    if (!m->counted && !m->counted_size) return 1;
    PyObject *one = Py_BuildValue("KLL", (unsigned long long)m->counted_ts, (long long)m->counted, (long long)m->counted_size);
    int failed = !one || PyList_Append(m->counts, one);
    Py_XDECREF(one);
    m->counted = m->counted_size = 0;
    return !failed;
}

static int count_one(Matching *m, uint64_t start_ts, int sign, size_t size) {
    if (start_ts != m->counted_ts && !flush_count(m)) return 0;
    m->counted_ts = start_ts;
    m->counted += sign;
    m->counted_size += sign * (int64_t)size;
    return 1;
}

/* The open prewrites of a transaction; NULL without an exception if it has none. */
static PyObject *open_of(Matching *m, uint64_t start_ts, int makes) {
    if (m->of && m->of_ts == start_ts) return m->of;
    PyObject *number = PyLong_FromUnsignedLongLong(start_ts);
    if (!number) return NULL;
    PyObject *of = PyDict_GetItemWithError(m->open, number);
    if (!of && makes && !PyErr_Occurred() && (of = PyDict_New())) {
        int failed = PyDict_SetItem(m->open, number, of);
        Py_DECREF(of); /* the dict keeps it */
        if (failed) of = NULL;
    }
    Py_DECREF(number);
    m->of = of, m->of_ts = start_ts;
    return of;
}

static int add_commit(Matching *m, const ChangeRow *r, uint64_t source, PyObject *change) {
    if (!m->list || m->commit_ts != r->commit_ts || m->start_ts != r->start_ts || m->source != source) {
        PyObject *one = Py_BuildValue(
            "KKK[]", (unsigned long long)r->commit_ts, (unsigned long long)r->start_ts, (unsigned long long)source);
        int failed = !one || PyList_Append(m->commits, one);
        if (!failed) m->list = PyTuple_GetItem(one, 3);
        Py_XDECREF(one);
        if (failed) return 0;
        m->commit_ts = r->commit_ts, m->start_ts = r->start_ts, m->source = source;
    }
    return !PyList_Append(m->list, change);
}

static int match_prewrite(Matching *m, const ChangeRow *r, PyObject *key) {
    if (!r->value_size && r->op_type != OP_DELETE) return SKIPPED; /* a lock that was rewritten, without its value */
    PyObject *of = open_of(m, r->start_ts, 1);
    if (!of) return FAILED;
    if (PyDict_GetItemWithError(of, key)) return STOPPED;
    if (PyErr_Occurred()) return FAILED;
    PyObject *values[] = {
        change_of(m, r, key), PyLong_FromUnsignedLongLong(r->source), PyLong_FromUnsignedLongLong(r->generation)};
    PyObject *prewrite = named(m->prewrite_type, 3, values);
    int failed = !prewrite || PyDict_SetItem(of, key, prewrite);
    Py_XDECREF(prewrite);
    return failed || !count_one(m, r->start_ts, 1, r->key_size + r->value_size + r->old_size) ? FAILED : WRITTEN;
}

static int match_commit(Matching *m, const ChangeRow *r, PyObject *key) {
    if (r->commit_ts <= m->resolved_ts) return STOPPED;
    PyObject *of = open_of(m, r->start_ts, 0);
    PyObject *prewrite = of ? PyDict_GetItemWithError(of, key) : NULL;
    if (!prewrite) return PyErr_Occurred() ? FAILED : STOPPED;
    PyObject *change = PyTuple_GetItem(prewrite, 0), *source = PyTuple_GetItem(prewrite, 1);
    const u8 *bytes;
    size_t key_size, value_size, old_size;
    if (!change || !source || !bytes_of(change, 0, &bytes, &key_size) || !bytes_of(change, 1, &bytes, &value_size) ||
        !bytes_of(change, 2, &bytes, &old_size))
        return FAILED;
    uint64_t of_prewrite = PyLong_AsUnsignedLongLong(source);
    if (PyErr_Occurred() || !add_commit(m, r, of_prewrite ? of_prewrite : r->source, change)) return FAILED;
    if (PyDict_DelItem(of, key)) return FAILED;
    if (!PyDict_Size(of)) {
        PyObject *number = PyLong_FromUnsignedLongLong(r->start_ts);
        m->of = NULL;
        int failed = !number || PyDict_DelItem(m->open, number);
        Py_XDECREF(number);
        if (failed) return FAILED;
    }
    return count_one(m, r->start_ts, -1, key_size + value_size + old_size) ? WRITTEN : FAILED;
}

static int match_one(Matching *m, const ChangeRow *r) {
    if (r->type != PREWRITE && r->type != COMMIT && r->type != COMMITTED) return STOPPED;
    if (compare(r->key, r->key_size, m->start, m->start_size) < 0 || compare(r->key, r->key_size, m->end, m->end_size) >= 0)
        return SKIPPED;
    if (r->key_size >= RECORD_PREFIX && r->key[0] == 't' && r->key[9] == '_' && r->key[10] == 'i') return SKIPPED;
    PyObject *key = bytes_from(r->key, r->key_size);
    if (!key) return FAILED;
    int done;
    if (r->type == PREWRITE) {
        done = match_prewrite(m, r, key);
    } else if (r->type == COMMIT) {
        done = match_commit(m, r, key);
    } else if (r->commit_ts <= m->resolved_ts) {
        done = STOPPED;
    } else {
        PyObject *change = change_of(m, r, key);
        done = change && add_commit(m, r, r->source, change) ? WRITTEN : FAILED;
        Py_XDECREF(change);
    }
    Py_DECREF(key);
    return done;
}

/* match(entries, from, (start, end), resolved ts, open, types) -> (the first row that isn't done, counts, commits) */
static PyObject *match(PyObject *module, PyObject *args) {
    const char *entries, *start, *end;
    Py_ssize_t size, from, start_size, end_size, at = 0;
    unsigned long long resolved_ts;
    Matching m = {0};
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y#n(y#y#)KO!(OO)", &entries, &size, &from, &start, &start_size, &end, &end_size, &resolved_ts,
                          &PyDict_Type, &m.open, &m.change_type, &m.prewrite_type))
        return NULL;
    if (!PyType_Check(m.change_type) || !PyType_Check(m.prewrite_type) ||
        !PyType_IsSubtype((PyTypeObject *)m.change_type, &PyTuple_Type) ||
        !PyType_IsSubtype((PyTypeObject *)m.prewrite_type, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "types of tuples are wanted");
        return NULL;
    }
    m.start = (const u8 *)start, m.start_size = (size_t)start_size, m.end = (const u8 *)end, m.end_size = (size_t)end_size;
    m.resolved_ts = resolved_ts;
    m.counts = PyList_New(0), m.commits = PyList_New(0);
    const u8 *p = (const u8 *)entries, *last = p + size, *row;
    size_t row_size;
    if (!m.counts || !m.commits) goto end;
    for (; p < last; at++) {
        if (*p++ != 0x0A || !get_bytes(&p, last, &row, &row_size)) break;
        if (at < from) continue;
        ChangeRow r;
        int done = read_change(&r, row, row + row_size) ? match_one(&m, &r) : STOPPED;
        if (done == FAILED) goto end;
        if (done == STOPPED) break;
    }
    if (flush_count(&m)) result = Py_BuildValue("nOO", at < from ? from : at, m.counts, m.commits);
end:
    Py_XDECREF(m.counts);
    Py_XDECREF(m.commits);
    return result;
}

static PyMethodDef functions[] = {
    {"match", match, METH_VARARGS, NULL},
    {"convert", convert, METH_VARARGS, NULL},
    {"encode", encode, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_compiled", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__compiled(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "EDITION", EDITION)) Py_CLEAR(module);
    return module;
}
