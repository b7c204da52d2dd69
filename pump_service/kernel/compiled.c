/* The pump's compiled kernel: what is done for every binlog, for a batch of them at once.

   It knows the usual case only. Whatever is out of the ordinary (an odd encoding, a refusal, a broken frame) is left to the
   Python code that calls it, at the place where it was met, so no rule is here that isn't there. `plain.py` has the same
   functions; tests hold both to the same answers. Nothing is kept between two calls.
*/
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define EDITION 8 /* as in __init__.py: what was compiled from other sources isn't used */

typedef unsigned char u8;

static uint32_t big32(const u8 *p) { return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]; }

static void put_big32(u8 *p, uint32_t v) { p[0] = (u8)(v >> 24), p[1] = (u8)(v >> 16), p[2] = (u8)(v >> 8), p[3] = (u8)v; }

static void put_little(u8 *p, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++) p[i] = (u8)(v >> 8 * i);
}

/* The byte behind the varint at p; NULL if it is cut off or not as short as can be. */
static const u8 *varint(const u8 *p, const u8 *end, uint64_t *value) {
    uint64_t v = 0;
    for (int shift = 0; p < end && shift < 64; shift += 7) {
        u8 byte = *p++;
        v |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            if ((shift && !byte) || (shift == 63 && byte > 1)) return NULL;
            *value = v;
            return p;
        }
    }
    return NULL;
}

typedef struct {
    int tp;
    uint64_t start, commit;
} Head;

/* Whether the bytes are a binlog.Binlog as an encoder writes it: each known field once at most, in ascending order. */
static int is_usual(const u8 *p, const u8 *end, Head *head) {
    uint64_t v;
    if (end - p < 6 || p[0] != 0x08 || p[1] > 2 || p[2] != 0x10) return 0;
    head->tp = p[1];
    p = varint(p + 3, end, &head->start);
    if (!p || p >= end || *p != 0x18) return 0;
    p = varint(p + 1, end, &head->commit);
    for (int last = 3; p && p < end;) {
        int tag = *p, field = tag >> 3;
        if (field <= last || field > 8 || (tag & 7) != (field <= 6 ? 2 : 0)) return 0;
        last = field;
        p = varint(p + 1, end, &v);
        if (!p || (field == 8 && v > INT32_MAX)) return 0;
        if (field <= 6) {
            if (v > (uint64_t)(end - p)) return 0;
            p += v;
        }
    }
    return p != NULL;
}

typedef struct {
    const char *prefix;
    Py_ssize_t prefix_size;
    unsigned long long limit;
    int prewrites;
    PyTypeObject *type;
    allocfunc make;
} Terms;

/* The Record in a gRPC message of a WriteBinlogReq; NULL without an error if it isn't a usual one. */
static PyObject *admitted(const u8 *p, const u8 *end, const Terms *terms) {
    Head head;
    uint64_t size;
    if (p[0] || big32(p + 1) != (uint32_t)(end - p - 5)) return NULL;
    p += 5;
    if (end - p < terms->prefix_size || memcmp(p, terms->prefix, (size_t)terms->prefix_size)) return NULL;
    p = varint(p + terms->prefix_size, end, &size);
    if (!p || size != (uint64_t)(end - p) || !is_usual(p, end, &head)) return NULL;
    if (!head.start || head.start > terms->limit || head.commit > terms->limit) return NULL;
    if (head.tp == 0 ? head.commit != 0 || !terms->prewrites : head.tp == 1 ? head.commit <= head.start : head.commit != 0) return NULL;
    PyObject *record = terms->make(terms->type, 4);
    if (!record) return NULL;
    PyObject *items[4] = {
        PyLong_FromLong(head.tp),
        PyLong_FromUnsignedLongLong(head.start),
        PyLong_FromUnsignedLongLong(head.commit),
        PyBytes_FromStringAndSize((const char *)p, end - p),
    };
    for (int i = 0; i < 4; i++) {
        if (!items[i] || PyTuple_SetItem(record, i, items[i])) {
            for (i++; i < 4; i++) Py_XDECREF(items[i]);
            Py_DECREF(record);
            return NULL;
        }
    }
    return record;
}

static int append_new(PyObject *list, PyObject *item) {
    int failed = !item || PyList_Append(list, item);
    Py_XDECREF(item);
    return failed;
}

/* A call has been opened and nothing of its body has come. */
static int note_open(PyObject *opened, unsigned long stream) {
    PyObject *key = PyLong_FromUnsignedLong(stream);
    int failed = !key || PyDict_SetItem(opened, key, Py_None);
    Py_XDECREF(key);
    return failed;
}

/* 1 if the call was open without a body, 0 if not, -1 for an error. `close` it. */
static int was_open(PyObject *opened, unsigned long stream, int close) {
    PyObject *key = PyLong_FromUnsignedLong(stream);
    if (!key) return -1;
    int found = PyDict_GetItemWithError(opened, key) == Py_None;
    if (PyErr_Occurred() || (found && close && PyDict_DelItem(opened, key))) found = -1;
    Py_DECREF(key);
    return found;
}

static PyObject *calls(PyObject *module, PyObject *args) {
    Py_buffer data;
    Py_ssize_t pos, block_size;
    const char *block;
    PyObject *opens, *opened, *type, *records, *streams, *result = NULL;
    unsigned long last, largest, fresh = 0;
    long room;
    Terms terms;
    long long received = 0;
    if (!PyArg_ParseTuple(args, "y*nz#OO!(y#KpO)kklO!O!", &data, &pos, &block, &block_size, &opens, &PyDict_Type, &opened,
                          &terms.prefix, &terms.prefix_size, &terms.limit, &terms.prewrites, &type, &largest, &last, &room, &PyList_Type,
                          &records, &PyList_Type, &streams))
        return NULL;
    if (!PyType_Check(type) || !PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "records are tuples");
        goto done;
    }
    terms.type = (PyTypeObject *)type;
    terms.make = (allocfunc)PyType_GetSlot(terms.type, Py_tp_alloc);
    const u8 *p = (const u8 *)data.buf + pos, *end = (const u8 *)data.buf + data.len;
    while (end - p >= 9) {
        uint32_t head = big32(p), length = head >> 8;
        unsigned long stream = big32(p + 5);
        const u8 *body = p + 9;
        if ((head & 0xFF) > 1 || length > 16384 || (Py_ssize_t)length > end - body) break;
        if ((head & 0xFF) == 1) {
            if (p[4] != 4 || stream <= last || !(stream & 1) || stream > INT32_MAX || room <= 0) break;
            if (!block || (Py_ssize_t)length != block_size || memcmp(body, block, length)) {
                PyObject *answer = PyObject_CallFunction(opens, "y#", (const char *)body, (Py_ssize_t)length);
                int is_call = answer ? PyObject_IsTrue(answer) : -1;
                Py_XDECREF(answer);
                if (is_call < 0) goto done;
                if (!is_call) break;
                block = NULL; /* it may mean something else now */
            }
            if (fresh && note_open(opened, fresh)) goto done;
            last = fresh = stream;
            room--;
        } else {
            if (p[4] != 1 || length < 5 || length > largest || !stream) break;
            int known = stream == fresh ? 1 : was_open(opened, stream, 0);
            if (known < 0) goto done;
            PyObject *record = known ? admitted(body, body + length, &terms) : NULL;
            if (!record) {
                if (PyErr_Occurred()) goto done;
                break;
            }
            if (append_new(records, record) || append_new(streams, PyLong_FromUnsignedLong(stream))) goto done;
            if (stream == fresh) fresh = 0;
            else if (was_open(opened, stream, 1) < 0) goto done;
            received += length;
        }
        p = body + length;
    }
    if (fresh && note_open(opened, fresh)) goto done;
    result = Py_BuildValue("nkL", (Py_ssize_t)(p - (const u8 *)data.buf), last, received);
done:
    PyBuffer_Release(&data);
    return result;
}

static PyObject *replies(PyObject *module, PyObject *args) {
    PyObject *streams, *result;
    const char *part[4];
    Py_ssize_t size[4], whole = 12;
    if (!PyArg_ParseTuple(args, "O!(y#y#y#y#)", &PyList_Type, &streams, &part[0], &size[0], &part[1], &size[1], &part[2], &size[2],
                          &part[3], &size[3]))
        return NULL;
    for (int i = 0; i < 4; i++) whole += size[i];
    Py_ssize_t count = PyList_Size(streams);
    if (!(result = PyBytes_FromStringAndSize(NULL, whole * count))) return NULL;
    u8 *p = (u8 *)PyBytes_AsString(result);
    for (Py_ssize_t k = 0; k < count; k++) {
        unsigned long stream = PyLong_AsUnsignedLong(PyList_GetItem(streams, k));
        for (int i = 0; i < 4; i++) {
            if (i) put_big32(p, (uint32_t)stream), p += 4;
            memcpy(p, part[i], (size_t)size[i]);
            p += size[i];
        }
    }
    if (PyErr_Occurred()) Py_CLEAR(result);
    return result;
}

static PyObject *framed(PyObject *module, PyObject *args) {
    PyObject *payloads, *crc32c, *offsets = NULL, *result = NULL;
    Py_ssize_t first;
    long long offset, limit;
    unsigned long magic;
    if (!PyArg_ParseTuple(args, "O!nLLkO", &PyTuple_Type, &payloads, &first, &offset, &limit, &magic, &crc32c)) return NULL;
    Py_ssize_t count = PyTuple_Size(payloads), stop = first;
    long long at = offset;
    if (!(offsets = PyList_New(0))) return NULL;
    while (stop < count && (stop == first || at <= limit)) {
        PyObject *payload = PyTuple_GetItem(payloads, stop++);
        if (!PyBytes_Check(payload)) {
            PyErr_SetString(PyExc_TypeError, "payloads are bytes");
            goto failed;
        }
        if (append_new(offsets, PyLong_FromLongLong(at))) goto failed;
        at += 16 + PyBytes_Size(payload);
    }
    if (!(result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(at - offset)))) goto failed;
    u8 *p = (u8 *)PyBytes_AsString(result);
    for (Py_ssize_t k = first; k < stop; k++) {
        PyObject *payload = PyTuple_GetItem(payloads, k), *crc = PyObject_CallFunctionObjArgs(crc32c, payload, NULL);
        if (!crc) goto failed;
        Py_ssize_t size = PyBytes_Size(payload);
        put_little(p, magic, 4);
        put_little(p + 4, (uint64_t)size, 8);
        put_little(p + 12, PyLong_AsUnsignedLong(crc), 4);
        Py_DECREF(crc);
        memcpy(p + 16, PyBytes_AsString(payload), (size_t)size);
        p += 16 + size;
    }
    if (PyErr_Occurred()) goto failed;
    return Py_BuildValue("NN", result, offsets);
failed:
    Py_XDECREF(result);
    Py_XDECREF(offsets);
    return NULL;
}

static long long number(PyObject *sequence, Py_ssize_t at) {
    PyObject *item = PySequence_GetItem(sequence, at);
    long long value = item ? PyLong_AsLongLong(item) : -1;
    Py_XDECREF(item);
    return value;
}

static PyObject *put_entries(PyObject *module, PyObject *args) {
    PyObject *put, *tps, *starts, *commits, *offsets;
    const char *prefix;
    Py_ssize_t size;
    unsigned long fid;
    if (!PyArg_ParseTuple(args, "Oy#kOOOO", &put, &prefix, &size, &fid, &tps, &starts, &commits, &offsets)) return NULL;
    Py_ssize_t count = PySequence_Size(offsets);
    u8 key[16], pointer[12];
    if (size > 8) {
        PyErr_SetString(PyExc_ValueError, "a prefix of at most 8 bytes");
        return NULL;
    }
    memcpy(key, prefix, (size_t)size);
    for (Py_ssize_t k = 0; k < count; k++) {
        long long ts = number(tps, k) ? number(commits, k) : number(starts, k), offset = number(offsets, k);
        if (PyErr_Occurred()) return NULL;
        put_big32(key + size, (uint32_t)((uint64_t)ts >> 32)), put_big32(key + size + 4, (uint32_t)ts);
        put_little(pointer, fid, 4), put_little(pointer + 4, (uint64_t)offset, 8);
        PyObject *name = PyBytes_FromStringAndSize((const char *)key, size + 8);
        PyObject *value = PyBytes_FromStringAndSize((const char *)pointer, 12);
        PyObject *done = name && value ? PyObject_CallFunctionObjArgs(put, name, value, NULL) : NULL;
        Py_XDECREF(name);
        Py_XDECREF(value);
        if (!done) return NULL;
        Py_DECREF(done);
    }
    Py_RETURN_NONE;
}

/* The start_ts of transactions that have ended, in a bytearray of the caller's: two generations of open addressing, 0 in free
   slots. When the current one is full the former one is emptied; `dropped` is the highest start_ts that was in there. */
enum { ENDED_BITS = 15, ENDED_SLOTS = 1 << ENDED_BITS, ENDED_PER_GENERATION = ENDED_SLOTS / 2 };

typedef struct {
    int64_t count, current, dropped, newest[2], latest, slots[2][ENDED_SLOTS];
} Ended;

static int64_t *ended_slot(Ended *ended, int64_t generation, int64_t start) {
    uint64_t at = (uint64_t)start * 0x9E3779B97F4A7C15u >> (64 - ENDED_BITS);
    int64_t *slots = ended->slots[generation];
    while (slots[at] && slots[at] != start) at = (at + 1) % ENDED_SLOTS;
    return slots + at;
}

static void remember_end(Ended *ended, int64_t start) {
    if (ended->count == ENDED_PER_GENERATION) {
        int64_t next = ended->current ^= 1;
        if (ended->newest[next] > ended->dropped) ended->dropped = ended->newest[next];
        memset(ended->slots[next], 0, sizeof ended->slots[next]);
        ended->newest[next] = ended->count = 0;
    }
    int64_t *slot = ended_slot(ended, ended->current, start);
    ended->count += !*slot;
    *slot = start;
    if (start > ended->newest[ended->current]) ended->newest[ended->current] = start;
    if (start > ended->latest) ended->latest = start;
}

/* Mostly a transaction that begins is later than all that have ended, and no memory has to be looked at. */
static int has_ended(Ended *ended, int64_t start) {
    return start <= ended->latest && (*ended_slot(ended, 0, start) || *ended_slot(ended, 1, start));
}

static PyObject *no_ended(PyObject *module, PyObject *none) {
    PyObject *made = PyByteArray_FromStringAndSize(NULL, sizeof(Ended));
    if (made) memset(PyByteArray_AsString(made), 0, sizeof(Ended));
    return made;
}

/* note(records, origin, of, ended, old_ts, repeated, old) -> False if an outcome's Prewrite isn't known; see plain.py */
static PyObject *note(PyObject *module, PyObject *args) {
    PyObject *records, *origin, *of, *table, *repeated, *old;
    long long old_ts;
    if (!PyArg_ParseTuple(args, "OOOO!LOO", &records, &origin, &of, &PyByteArray_Type, &table, &old_ts, &repeated, &old)) return NULL;
    if (PyByteArray_Size(table) != sizeof(Ended)) {
        PyErr_SetString(PyExc_ValueError, "not of no_ended()");
        return NULL;
    }
    Ended *ended = (Ended *)PyByteArray_AsString(table);
    if (ended->dropped > old_ts) old_ts = ended->dropped;
    Py_ssize_t count = PySequence_Size(records);
    int all_first = 1, failed = count < 0;
    for (Py_ssize_t k = 0; k < count && !failed; k++) {
        PyObject *record = PySequence_GetItem(records, k);
        PyObject *tp = record ? PyTuple_GetItem(record, 0) : NULL, *start = tp ? PyTuple_GetItem(record, 1) : NULL;
        long long start_ts = start ? PyLong_AsLongLong(start) : -1;
        int is_outcome = !start || PyErr_Occurred() ? -1 : PyObject_IsTrue(tp);
        failed = is_outcome < 0;
        if (is_outcome == 1) {
            if (PyDict_GetItemWithError(of, start)) failed = PyDict_DelItem(of, start), remember_end(ended, start_ts);
            else all_first = 0, failed = PyErr_Occurred() != NULL;
        } else if (!failed) {
            int found = PyDict_Contains(of, start);
            if (!found) found = has_ended(ended, start_ts);
            if (found < 0) failed = 1;
            else if (!found && start_ts > old_ts) failed = PyDict_SetItem(of, start, origin);
            else failed = PyList_Append(found ? repeated : old, record);
        }
        Py_XDECREF(record);
    }
    return failed ? NULL : PyBool_FromLong(all_first);
}

/* Where the fields behind prewrite_key begin, if the message begins as TiDB writes it: nine-byte timestamps, or a commit_ts
   of 0. */
static const u8 *after_key(const u8 *p, const u8 *end) {
    uint64_t start, commit, size;
    if (end - p < 14 || p[0] != 0x08 || p[1] > 2 || p[2] != 0x10 || varint(p + 3, end, &start) != p + 12 || p[12] != 0x18) return NULL;
    const u8 *at = varint(p + 13, end, &commit);
    if (!at || (at != p + 22 && commit) || at == end || *at != 0x22) return NULL;
    at = varint(at + 1, end, &size);
    return at && size <= (uint64_t)(end - at) ? at + size : NULL;
}

static const u8 NO_DDL[4] = {0x38, 0x00, 0x40, 0x00};

static int is_no_ddl(const u8 *p, const u8 *end) { return end - p == 4 && !memcmp(p, NO_DDL, 4); }

static PyObject *merged(PyObject *module, PyObject *args) {
    Py_buffer commit, prewrite;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*y*", &commit, &prewrite)) return NULL;
    const u8 *c = commit.buf, *c_end = c + commit.len, *p = prewrite.buf, *p_end = p + prewrite.len;
    const u8 *tail = after_key(c, c_end), *value = after_key(p, p_end);
    uint64_t size;
    if (tail && is_no_ddl(tail, c_end) && value && value < p_end && *value == 0x2A) {
        const u8 *at = varint(value + 1, p_end, &size);
        if (at && size <= (uint64_t)(p_end - at) && is_no_ddl(at + size, p_end)) {
            result = PyBytes_FromStringAndSize(NULL, (tail - c) + (p_end - value));
            if (result) {
                u8 *into = (u8 *)PyBytes_AsString(result);
                memcpy(into, c, (size_t)(tail - c));
                memcpy(into + (tail - c), value, (size_t)(p_end - value));
            }
        }
    }
    if (!result && !PyErr_Occurred()) result = Py_NewRef(Py_None);
    PyBuffer_Release(&commit);
    PyBuffer_Release(&prewrite);
    return result;
}

static u8 *put_varint(u8 *p, uint64_t v) {
    for (; v >= 0x80; v >>= 7) *p++ = (u8)(v | 0x80);
    *p++ = (u8)v;
    return p;
}

static PyObject *pull_message(PyObject *module, PyObject *args) {
    PyObject *payload;
    unsigned long long start, commit;
    if (!PyArg_ParseTuple(args, "O!KK", &PyBytes_Type, &payload, &start, &commit)) return NULL;
    u8 times[24], lengths[10], *t = times + 2, *n;
    uint64_t size = (uint64_t)PyBytes_Size(payload);
    *t++ = 0x08, t = put_varint(t, start), *t++ = 0x10, t = put_varint(t, commit);
    times[0] = 0x22, times[1] = (u8)(t - times - 2);
    n = put_varint(lengths, size);
    uint64_t inner = 3 + (uint64_t)(n - lengths) + size + (uint64_t)(t - times);
    u8 front[16], *o = front + 6;
    front[0] = 0, front[5] = 0x0A;
    o = put_varint(o, inner);
    put_big32(front + 1, (uint32_t)(inner + (uint64_t)(o - front - 5)));
    PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(inner + (uint64_t)(o - front)));
    if (!result) return NULL;
    u8 *into = (u8 *)PyBytes_AsString(result);
    memcpy(into, front, (size_t)(o - front)), into += o - front;
    memcpy(into, "\x0a\x00\x12", 3), into += 3;
    memcpy(into, lengths, (size_t)(n - lengths)), into += n - lengths;
    memcpy(into, PyBytes_AsString(payload), (size_t)size), into += size;
    memcpy(into, times, (size_t)(t - times));
    return result;
}

/* RFC 7541, appendix B: how many bits the code of each byte value, and of EOS (256), has. The code is canonical. */
static const u8 CODE_BITS[257] = {
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
};
static struct {
    uint32_t first[31], count[31], base[31];
    uint16_t symbol[257];
} huffman;

static void prepare_huffman(void) {
    uint32_t code = 0, at = 0;
    memset(huffman.count, 0, sizeof huffman.count);
    for (int bits = 1; bits <= 30; bits++) {
        code <<= 1;
        huffman.first[bits] = code, huffman.base[bits] = at;
        for (int symbol = 0; symbol < 257; symbol++)
            if (CODE_BITS[symbol] == bits) huffman.symbol[at++] = (uint16_t)symbol, huffman.count[bits]++;
        code += huffman.count[bits];
    }
}

/* How many bytes the code stands for; -1 if it is none or badly padded. `into` has room for two bytes a byte. */
static Py_ssize_t unhuffman(const u8 *p, const u8 *end, u8 *into) {
    uint32_t code = 0, bits = 0;
    const u8 *begin = into;
    for (; p < end; p++) {
        for (int shift = 7; shift >= 0; shift--) {
            code = code << 1 | (*p >> shift & 1);
            if (++bits > 30) return -1;
            if (code - huffman.first[bits] < huffman.count[bits]) {
                uint16_t symbol = huffman.symbol[huffman.base[bits] + code - huffman.first[bits]];
                if (symbol == 256) return -1;
                *into++ = (u8)symbol;
                code = bits = 0;
            }
        }
    }
    return bits <= 7 && code == (1u << bits) - 1 ? into - begin : -1;
}

/* The byte behind an integer with a prefix of so many bits; NULL if it is larger than two more bytes hold. */
static const u8 *small_integer(const u8 *p, const u8 *end, int bits, uint32_t *value) {
    if (p >= end) return NULL;
    uint32_t most = (1u << bits) - 1;
    *value = *p++ & most;
    if (*value < most) return p;
    for (int shift = 0; p < end && shift < 14; shift += 7) {
        *value += (uint32_t)(*p & 0x7F) << shift;
        if (*p++ < 0x80) return p;
    }
    return NULL;
}

static const u8 *string(const u8 *p, const u8 *end, PyObject **into) {
    u8 text[1024];
    uint32_t size;
    int is_coded = p < end && *p & 0x80;
    p = small_integer(p, end, 7, &size);
    if (!p || size > (uint32_t)(end - p) || size > sizeof text / 2) return NULL;
    Py_ssize_t length = is_coded ? unhuffman(p, p + size, text) : (Py_ssize_t)size;
    *into = length < 0 ? NULL : PyBytes_FromStringAndSize((const char *)(is_coded ? text : p), length);
    return *into ? p + size : NULL;
}

static PyObject *fields(PyObject *module, PyObject *args) {
    PyObject *fixed, *entries, *name = NULL, *value = NULL, *result = NULL;
    const char *block;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "y#O!O", &block, &size, &PyTuple_Type, &fixed, &entries)) return NULL;
    PyObject *found = PyList_New(0), *inserted = PyList_New(0);
    const u8 *p = (const u8 *)block, *end = p + size;
    while (found && inserted && p < end) {
        u8 first = *p;
        uint32_t index;
        if ((first & 0xE0) == 0x20 || !(p = small_integer(p, end, first & 0x80 ? 7 : first & 0x40 ? 6 : 4, &index))) goto unusual;
        PyObject *entry = NULL;
        Py_ssize_t at = (Py_ssize_t)index - PyTuple_Size(fixed);
        if (at < 0) entry = index ? Py_XNewRef(PyTuple_GetItem(fixed, (Py_ssize_t)index)) : NULL;
        else if (!PyList_Size(inserted) && at < PyObject_Size(entries)) entry = PySequence_GetItem(entries, at);
        if (!entry && (first & 0x80 || index)) goto unusual;
        if (!(first & 0x80)) {
            name = entry ? PySequence_GetItem(entry, 0) : NULL;
            Py_CLEAR(entry);
            if (!name && !(p = string(p, end, &name))) goto unusual;
            if (!(p = string(p, end, &value)) || !(entry = PyTuple_Pack(2, name, value))) goto unusual;
            Py_CLEAR(name);
            Py_CLEAR(value);
            if (first & 0x40 && PyList_Append(inserted, entry)) Py_CLEAR(entry);
        }
        if (append_new(found, entry)) goto unusual;
    }
    if (found && inserted) result = Py_BuildValue("(NO)", PyList_AsTuple(found), inserted);
unusual:
    if (!result && !PyErr_Occurred()) result = Py_NewRef(Py_None);
    Py_XDECREF(name);
    Py_XDECREF(value);
    Py_XDECREF(found);
    Py_XDECREF(inserted);
    return result;
}

static PyMethodDef functions[] = {
    {"fields", fields, METH_VARARGS, NULL},

    {"merged", merged, METH_VARARGS, NULL},
    {"pull_message", pull_message, METH_VARARGS, NULL},
    {"calls", calls, METH_VARARGS, NULL},
    {"replies", replies, METH_VARARGS, NULL},
    {"framed", framed, METH_VARARGS, NULL},
    {"note", note, METH_VARARGS, NULL}, {"no_ended", no_ended, METH_NOARGS, NULL},
    {"put_entries", put_entries, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_compiled", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__compiled(void) {
    PyObject *module = PyModule_Create(&definition);
    prepare_huffman();
    if (module && PyModule_AddIntConstant(module, "EDITION", EDITION)) Py_CLEAR(module);
    return module;
}
