/* The compiled kernel of landing: which row changes the payloads of a batch hold, and these as columns of a part.

   It knows Prewrites of row changes whose sequences and lists agree. Whatever is otherwise, DDL too, is refused as a whole, by
   None, and the Python code that calls it goes over the batch, or says what is wrong with it: no error is made here. Every
   length is checked before what it is of is read.
*/
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EDITION 1 /* as in __init__.py: what was compiled from other sources isn't used */

/* Fields of the messages in tidb/proto/binlog.proto, as number << 3 | wire type. */
enum { TP = 0x08, START_TS = 0x10, PREWRITE_VALUE = 0x2A, DDL_QUERY = 0x32 };
enum { SCHEMA_VERSION = 0x08, MUTATION = 0x12 };
enum { TABLE_ID = 0x08, INSERTED = 0x12, UPDATED = 0x1A, DELETED = 0x32, SEQUENCE = 0x38, PACKED_SEQUENCE = 0x3A };
enum { DELETED_IDS = 0x20, PACKED_DELETED_IDS = 0x22, DELETED_PKS = 0x2A }; /* what TiDB gave up before 2.0 */
enum { INSERT, UPDATE, DELETE, OBSOLETE };

typedef unsigned char u8;

static const u8 KIND[] = {INSERT, UPDATE, OBSOLETE, OBSOLETE, DELETE}; /* of each MutationType */

typedef struct {
    int64_t owner, table, version, count, position; /* owner: the transaction; position: of the first change in it */
} Mutation;

typedef struct {
    int64_t begin, sized; /* sized: how many bytes << 2 | kind */
} Change;

typedef struct {
    int64_t id, rows, first, last, oldest, newest;
} TableRows;

typedef struct {
    const u8 *begin, *end;
} Row;

/* Things of one size, one behind the other. */
typedef struct {
    u8 *at;
    size_t used, room;
} Many;

enum { DONE, REFUSED, NO_MEMORY };

/* Where the next one goes, of so many bytes; NULL without memory. */
static void *next(Many *m, size_t size) {
    if (m->used + size > m->room) {
        size_t room = m->room ? 2 * m->room : 4096;
        u8 *at = realloc(m->at, room);
        if (!at) return NULL;
        m->at = at, m->room = room;
    }
    m->used += size;
    return m->at + m->used - size;
}

static int64_t i64(const void *p, Py_ssize_t i) {
    int64_t v;
    memcpy(&v, (const u8 *)p + 8 * i, 8);
    return v;
}

/* The byte behind the varint at p, of ten bytes at most; NULL if it is cut off or longer. */
static const u8 *varint(const u8 *p, const u8 *end, uint64_t *value) {
    uint64_t v = 0;
    if (p < end && *p < 0x80) {
        *value = *p;
        return p + 1;
    }
    for (int shift = 0; p < end && shift < 70; shift += 7) {
        u8 byte = *p++;
        v |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value = v;
            return p;
        }
    }
    return NULL;
}

typedef struct {
    uint64_t tag, value; /* value: of a VARINT */
    Row inside;          /* of any other */
} Field;

/* The byte behind the field at p; NULL if it breaks off or is none. */
static const u8 *field(const u8 *p, const u8 *end, Field *f) {
    uint64_t size;
    if (!(p = varint(p, end, &f->tag)) || f->tag < 8 || f->tag >> 32) return NULL;
    switch (f->tag & 7) {
    case 0: return varint(p, end, &f->value);
    case 1: size = 8; break;
    case 2:
        if (!(p = varint(p, end, &size))) return NULL;
        break;
    case 5: size = 4; break;
    default: return NULL;
    }
    if (size > (uint64_t)(end - p)) return NULL;
    f->inside.begin = p, f->inside.end = p + size;
    return p + size;
}

typedef struct {
    const u8 *base;
    Many mutations, changes, tables, lists[3], kinds;
    uint32_t *slots; /* a hash table: 1 + the number of a table's TableRows, 0 where none is */
    size_t room;     /* of it, a power of two */
    int64_t internal, above; /* changes of TiDB's own tables, whose ids are above this */
    int64_t bytes, count;
} Found;

static int add_kind(Found *f, uint64_t value) {
    if (value >= sizeof KIND) return DONE; /* nobody knows it: left out, as protobuf does */
    if (KIND[value] == OBSOLETE) return REFUSED;
    u8 *to = next(&f->kinds, 1);
    if (!to) return NO_MEMORY;
    *to = KIND[value];
    return DONE;
}

/* What a mutation holds, to the end of `lists` and `kinds`. */
static int gather(Found *f, Row message, int64_t *table) {
    Field in;
    int state = DONE;
    for (const u8 *p = message.begin; p < message.end && state == DONE;) {
        if (!(p = field(p, message.end, &in))) return REFUSED;
        switch (in.tag) {
        case TABLE_ID: *table = (int64_t)in.value; break;
        case INSERTED: case UPDATED: case DELETED: {
            Row *to = next(f->lists + (in.tag == INSERTED ? INSERT : in.tag == UPDATED ? UPDATE : DELETE), sizeof in.inside);
            if (!to) return NO_MEMORY;
            *to = in.inside;
            break;
        }
        case SEQUENCE: state = add_kind(f, in.value); break;
        case PACKED_SEQUENCE:
            for (const u8 *q = in.inside.begin; q < in.inside.end && state == DONE; q++) {
                uint64_t value = *q < 0x80 ? *q : sizeof KIND; /* one of more bytes is unknown */
                while (q < in.inside.end && *q >= 0x80) q++;
                state = q < in.inside.end ? add_kind(f, value) : REFUSED;
            }
            break;
        case DELETED_IDS: case PACKED_DELETED_IDS: case DELETED_PKS: return REFUSED;
        }
    }
    return state;
}

/* The changes of a mutation, in the order of its sequence. */
static int mutation(Found *f, Row message, int64_t owner, int64_t *position) {
    int64_t table = 0;
    size_t at[3] = {0, 0, 0};
    for (int i = 0; i < 3; i++) f->lists[i].used = 0;
    f->kinds.used = 0;
    int state = gather(f, message, &table);
    if (state != DONE) return state;
    size_t count = f->kinds.used;
    if (table > f->above) {
        for (size_t i = 0; i < count; i++) at[f->kinds.at[i]]++;
        for (int i = 0; i < 3; i++)
            if (at[i] * sizeof(Row) != f->lists[i].used) return REFUSED;
        f->internal += (int64_t)count;
        return DONE;
    }
    for (size_t i = 0; i < count; i++) {
        u8 kind = f->kinds.at[i];
        Row row;
        if ((at[kind] + 1) * sizeof row > f->lists[kind].used) return REFUSED;
        memcpy(&row, f->lists[kind].at + at[kind]++ * sizeof row, sizeof row);
        Change *to = next(&f->changes, sizeof *to);
        if (!to) return NO_MEMORY;
        int64_t size = row.end - row.begin;
        to->begin = row.begin - f->base, to->sized = size * 4 + kind;
        f->bytes += size;
    }
    for (int i = 0; i < 3; i++)
        if (at[i] * sizeof(Row) != f->lists[i].used) return REFUSED;
    if (!count) return DONE;
    Mutation *to = next(&f->mutations, sizeof *to);
    if (!to) return NO_MEMORY;
    to->owner = owner, to->table = table, to->version = 0, to->count = (int64_t)count, to->position = *position;
    *position += (int64_t)count, f->count += (int64_t)count;
    return *position > INT32_MAX ? REFUSED : DONE;
}

static int transaction(Found *f, Row payload, int64_t start_ts, int64_t owner) {
    Field in;
    Row value = {NULL, NULL};
    uint64_t tp = 0, start = 0, version = 0;
    int64_t position = 0;
    size_t before = f->mutations.used;
    for (const u8 *p = payload.begin; p < payload.end;) {
        if (!(p = field(p, payload.end, &in))) return REFUSED;
        if (in.tag == TP) tp = in.value;
        else if (in.tag == START_TS) start = in.value;
        else if (in.tag == PREWRITE_VALUE) value = in.inside;
        else if (in.tag == DDL_QUERY) return REFUSED;
    }
    if (tp || start != (uint64_t)start_ts || !value.begin) return REFUSED;
    for (const u8 *p = value.begin; p < value.end;) {
        int state;
        if (!(p = field(p, value.end, &in))) return REFUSED;
        if (in.tag == SCHEMA_VERSION) version = in.value;
        else if (in.tag == MUTATION && (state = mutation(f, in.inside, owner, &position)) != DONE) return state;
    }
    for (size_t at = before; at < f->mutations.used; at += sizeof(Mutation)) ((Mutation *)(f->mutations.at + at))->version = (int64_t)version;
    return DONE;
}

static size_t place_of(int64_t id, size_t room) { return (size_t)(((uint64_t)id * 0x9E3779B97F4A7C15u) >> 32) & (room - 1); }

/* Room for one more table than there are; 0 without memory. */
static int make_room(Found *f) {
    size_t tables = f->tables.used / sizeof(TableRows);
    if (f->slots && 2 * (tables + 1) <= f->room) return 1;
    size_t room = f->room ? 2 * f->room : 64;
    if (tables >= UINT32_MAX / 4) return 0;
    free(f->slots);
    if (!(f->slots = calloc(room, sizeof *f->slots))) return 0;
    f->room = room;
    for (size_t i = 0; i < tables; i++) {
        size_t at = place_of(((TableRows *)f->tables.at)[i].id, room);
        while (f->slots[at]) at = (at + 1) & (room - 1);
        f->slots[at] = (uint32_t)i + 1;
    }
    return 1;
}

/* Adds up what each table has, of the transactions with these commit timestamps. */
static int count_tables(Found *f, const void *commits) {
    for (size_t i = 0; i < f->mutations.used / sizeof(Mutation); i++) {
        const Mutation *m = (Mutation *)f->mutations.at + i;
        if (!make_room(f)) return NO_MEMORY;
        size_t at = place_of(m->table, f->room);
        while (f->slots[at] && ((TableRows *)f->tables.at)[f->slots[at] - 1].id != m->table) at = (at + 1) & (f->room - 1);
        int64_t commit = i64(commits, (Py_ssize_t)m->owner);
        TableRows *t;
        if (f->slots[at]) {
            t = (TableRows *)f->tables.at + f->slots[at] - 1;
        } else {
            if (!(t = next(&f->tables, sizeof *t))) return NO_MEMORY;
            t->id = m->table, t->rows = 0, t->first = commit, t->oldest = t->newest = m->version;
            f->slots[at] = (uint32_t)(f->tables.used / sizeof *t);
        }
        t->rows += m->count, t->last = commit;
        if (m->version < t->oldest) t->oldest = m->version;
        if (m->version > t->newest) t->newest = m->version;
    }
    return DONE;
}

static int all(Found *f, const Py_buffer *data, const Py_buffer *edges, const Py_buffer *commits, const Py_buffer *starts) {
    Py_ssize_t count = starts->len / 8;
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t from = i64(edges->buf, i), to = i64(edges->buf, i + 1);
        if (from < 0 || to < from || to > data->len) return REFUSED;
        Row payload = {f->base + from, f->base + to};
        int state = transaction(f, payload, i64(starts->buf, i), i);
        if (state != DONE) return state;
    }
    return count_tables(f, commits->buf);
}

static PyObject *bytes_of(const Many *m) { return PyBytes_FromStringAndSize((const char *)m->at, (Py_ssize_t)m->used); }

/* scan(data, edges, commits, starts, above) -> (mutations, changes, tables, changes left out, bytes of rows) or None */
static PyObject *scan(PyObject *module, PyObject *args) {
    Py_buffer data, edges, commits, starts;
    long long above;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*y*L", &data, &edges, &commits, &starts, &above)) return NULL;
    Found f;
    memset(&f, 0, sizeof f);
    f.base = data.buf, f.above = above;
    if (starts.len % 8 || commits.len != starts.len || edges.len != starts.len + 8) {
        PyErr_SetString(PyExc_ValueError, "a commit_ts and a start_ts for each payload, and one more edge");
        goto done;
    }
    int state;
    Py_BEGIN_ALLOW_THREADS
    state = all(&f, &data, &edges, &commits, &starts);
    Py_END_ALLOW_THREADS
    if (state == NO_MEMORY) PyErr_NoMemory();
    else if (state == REFUSED) result = Py_NewRef(Py_None);
    else
        result = Py_BuildValue(
            "(NNNLL)", bytes_of(&f.mutations), bytes_of(&f.changes), bytes_of(&f.tables), (long long)f.internal, (long long)f.bytes);
done:
    for (int i = 0; i < 3; i++) free(f.lists[i].at);
    free(f.mutations.at), free(f.changes.at), free(f.tables.at), free(f.kinds.at), free(f.slots);
    PyBuffer_Release(&data), PyBuffer_Release(&edges), PyBuffer_Release(&commits), PyBuffer_Release(&starts);
    return result;
}

/* A column of so many bytes; NULL without memory. */
static u8 *column(PyObject *columns, Py_ssize_t at, Py_ssize_t size) {
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, size);
    if (!bytes || PyTuple_SetItem(columns, at, bytes)) return NULL;
    return (u8 *)PyBytes_AsString(bytes);
}

static Change change_at(const Py_buffer *changes, Py_ssize_t i) {
    Change c;
    memcpy(&c, (const u8 *)changes->buf + i * (Py_ssize_t)sizeof c, sizeof c);
    return c;
}

/* columns(data, commits, starts, mutations, changes, from, to) -> (commit_ts, start_ts, position, table_id, schema_version, kind,
   offsets, rows): the columns of changes[from:to], as a part has them */
static PyObject *columns(PyObject *module, PyObject *args) {
    Py_buffer data, commits, starts, mutations, changes;
    Py_ssize_t from, to, size = 0;
    PyObject *result = NULL;
    u8 *of[8];
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*nn", &data, &commits, &starts, &mutations, &changes, &from, &to)) return NULL;
    Py_ssize_t count = changes.len / (Py_ssize_t)sizeof(Change), last = mutations.len / (Py_ssize_t)sizeof(Mutation), at = 0, i = from;
    if (from < 0 || to < from || to > count) goto wrong;
    for (Py_ssize_t k = from; k < to; k++) {
        Change c = change_at(&changes, k);
        int64_t bytes = c.sized >> 2;
        if (c.begin < 0 || bytes < 0 || c.begin > data.len || bytes > data.len - c.begin) goto wrong;
        size += (Py_ssize_t)bytes;
    }
    if (!(result = PyTuple_New(8))) goto done;
    static const int WIDTHS[] = {8, 8, 4, 8, 8, 1};
    for (int k = 0; k < 6; k++)
        if (!(of[k] = column(result, k, WIDTHS[k] * (to - from)))) goto failed;
    if (!(of[6] = column(result, 6, 8 * (to - from + 1))) || !(of[7] = column(result, 7, size))) goto failed;
    int64_t offset = 0;
    for (Py_ssize_t k = 0; k < last && i < to; k++) {
        Mutation m;
        memcpy(&m, (const u8 *)mutations.buf + k * (Py_ssize_t)sizeof m, sizeof m);
        if (m.count < 0 || m.count > count - at || m.owner < 0 || m.owner >= commits.len / 8 || m.owner >= starts.len / 8) goto wrong;
        int64_t commit = i64(commits.buf, (Py_ssize_t)m.owner), start = i64(starts.buf, (Py_ssize_t)m.owner);
        for (; i < to && i - at < m.count; i++) {
            Py_ssize_t n = i - from;
            Change c = change_at(&changes, i);
            int32_t position = (int32_t)((uint64_t)m.position + (uint64_t)(i - at));
            int64_t bytes = c.sized >> 2;
            memcpy(of[0] + 8 * n, &commit, 8), memcpy(of[1] + 8 * n, &start, 8), memcpy(of[2] + 4 * n, &position, 4);
            memcpy(of[3] + 8 * n, &m.table, 8), memcpy(of[4] + 8 * n, &m.version, 8), memcpy(of[6] + 8 * n, &offset, 8);
            of[5][n] = (u8)(c.sized & 3);
            memcpy(of[7] + offset, (const u8 *)data.buf + c.begin, (size_t)bytes);
            offset += bytes;
        }
        at += (Py_ssize_t)m.count;
    }
    if (i != to) goto wrong;
    memcpy(of[6] + 8 * (to - from), &offset, 8);
    goto done;
wrong:
    PyErr_SetString(PyExc_ValueError, "changes of other payloads");
failed:
    Py_CLEAR(result);
done:
    PyBuffer_Release(&data), PyBuffer_Release(&commits), PyBuffer_Release(&starts), PyBuffer_Release(&mutations), PyBuffer_Release(&changes);
    return result;
}

static PyMethodDef functions[] = {
    {"scan", scan, METH_VARARGS, NULL},
    {"columns", columns, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_compiled", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__compiled(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "EDITION", EDITION)) Py_CLEAR(module);
    return module;
}
