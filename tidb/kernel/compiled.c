/* The row codec's compiled kernel: where the values of many rows lie, and whether two images of a row are alike.

   It knows rows as TiDB writes them, columns in the table's order. Whatever is otherwise is refused as a whole, by None, and
   the Python code that calls it does those rows, or says what is wrong with them: no error is made here.

   Cells: what `walk` finds of images in columns ("slots"), an image's side by side, each of two uint64:

       place    the datum's flag (ABSENT for none) in the first 8 bits; behind them where its bytes begin in `data`, past its
                flag and length
       word     the number of an integer datum (two's complement); else how many bytes there are
*/
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EDITION 2 /* as in __init__.py: what was compiled from other sources isn't used */

enum { NIL, COMPACT = 2, FLOAT = 5, DECIMAL, DURATION, VARINT, UVARINT, JSON, ABSENT = 255 };
enum { INSERT, UPDATE, DELETE };
enum { UNLOOKED, NUMBER, MOMENT }; /* how the numbers of a column are compared: not at all, as they are, by the second; else by bytes */

typedef unsigned char u8;

static int64_t i64(const void *p, Py_ssize_t i) {
    int64_t v;
    memcpy(&v, (const u8 *)p + 8 * i, 8);
    return v;
}

static uint64_t big64(const u8 *p) {
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) v = v << 8 | p[i];
    return v;
}

typedef struct {
    uint64_t place, word;
} Cell;

static u8 flag_of(Cell c) { return (u8)(c.place >> 56); }

static uint64_t start_of(Cell c) { return c.place & (((uint64_t)1 << 56) - 1); }

/* How many bytes of the data are the cell's. */
static uint64_t length_of(Cell c) {
    u8 flag = flag_of(c);
    return flag == COMPACT || flag == DECIMAL || flag == JSON ? c.word : flag == FLOAT ? 8 : 0;
}

typedef struct {
    Py_ssize_t slots, n;
    const u8 *first;
} Cells;

static int cells_of(Cells *c, const Py_buffer *b, Py_ssize_t slots) {
    if (slots <= 0 || b->len % (16 * slots)) {
        PyErr_SetString(PyExc_ValueError, "these are no cells");
        return 0;
    }
    c->slots = slots, c->n = b->len / 16 / slots, c->first = b->buf;
    return 1;
}

static Cell cell_at(const Cells *c, int64_t row, Py_ssize_t slot) {
    Cell cell;
    memcpy(&cell, c->first + 16 * (row * c->slots + slot), 16);
    return cell;
}

/* Whether a cell's bytes are within the data, as they are if `walk` found them there. */
static int is_within(Cell c, const Py_buffer *data) {
    uint64_t size = (uint64_t)data->len, length = length_of(c);
    return !length || (start_of(c) <= size && length <= size - start_of(c));
}

/* The byte behind the varint at p; NULL if it is cut off or too large. */
static const u8 *varint(const u8 *p, const u8 *end, uint64_t *value) {
    uint64_t v = 0;
    if (p < end && *p < 0x80) {
        *value = *p;
        return p + 1;
    }
    for (int shift = 0; p < end && shift < 70; shift += 7) {
        u8 byte = *p++;
        if (shift == 63 && byte > 1) return NULL;
        v |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value = v;
            return p;
        }
    }
    return NULL;
}

static const u8 *counted(const u8 *p, const u8 *end, uint64_t size) { return p && size <= (uint64_t)(end - p) ? p + size : NULL; }

static int digits_bytes(int digits) { return digits / 9 * 4 + (digits % 9 + 1) / 2; }

static const u8 *json_end(const u8 *p, const u8 *end) {
    uint64_t size;
    if (p >= end) return NULL;
    switch (*p) {
    case 0x01: case 0x03:
        if (end - p < 9) return NULL;
        return counted(p + 1, end, (uint64_t)p[5] | (uint64_t)p[6] << 8 | (uint64_t)p[7] << 16 | (uint64_t)p[8] << 24);
    case 0x04: return counted(p, end, 2);
    case 0x09: case 0x0A: case 0x0B: case 0x0E: case 0x0F: case 0x10: return counted(p, end, 9);
    case 0x11: return counted(p, end, 13);
    case 0x0C: case 0x0D:
        p += *p == 0x0D ? 2 : 1;
        if (p >= end || !(p = varint(p, end, &size))) return NULL;
        return counted(p, end, size);
    default: return NULL;
    }
}

/* The byte behind the datum at p, which goes into a cell, where there is one; NULL if it isn't one of `flags`. */
static const u8 *datum(const u8 *base, const u8 *p, const u8 *end, uint32_t flags, u8 *cell) {
    if (p >= end) return NULL;
    u8 flag = *p++;
    const u8 *start = p;
    uint64_t word = 0;
    if (flag > JSON || (flag != NIL && !(flags >> flag & 1))) return NULL;
    switch (flag) {
    case NIL: break;
    case VARINT:
        p = varint(p, end, &word);
        word = word >> 1 ^ (0 - (word & 1));
        break;
    case UVARINT: p = varint(p, end, &word); break;
    case COMPACT:
        p = varint(p, end, &word);
        if (!p || word & 1) return NULL;
        start = p, word >>= 1;
        p = counted(p, end, word);
        break;
    case FLOAT: p = counted(p, end, 8); break;
    case DURATION:
        if (!(p = counted(p, end, 8))) return NULL;
        word = big64(start) ^ (uint64_t)1 << 63;
        break;
    case DECIMAL:
        if (end - p < 2 || p[0] < 1 || p[0] > 81 || p[1] > 30 || p[1] > p[0]) return NULL;
        word = 2 + (uint64_t)(digits_bytes(p[0] - p[1]) + digits_bytes(p[1]));
        p = counted(p, end, word);
        break;
    case JSON:
        p = json_end(p, end);
        word = p ? (uint64_t)(p - start) : 0;
        break;
    default: return NULL;
    }
    if (!p) return NULL;
    if (cell) {
        Cell found = {(uint64_t)flag << 56 | (uint64_t)(start - base), word};
        memcpy(cell, &found, 16);
    }
    return p;
}

typedef struct {
    u8 header[11]; /* what a pair of the column begins with, two bytes at least */
    u8 width;
    uint32_t flags; /* a bit for each flag that the datum may have */
    int32_t slot;   /* below 0: passed over */
    uint32_t unused;
} Entry;

/* The byte behind one image's pairs, which go into the cells of a row; `found` counts those that do. */
static const u8 *image(const u8 *base, const u8 *p, const u8 *end, const Entry *shape, Py_ssize_t entries, u8 *row, Py_ssize_t *found) {
    for (Py_ssize_t i = 0; p && p < end && i < entries; i++) {
        const Entry *e = shape + i;
        if (end - p <= e->width || memcmp(p, e->header, 2) || memcmp(p, e->header, e->width)) continue;
        p = datum(base, p + e->width, end, e->flags, e->slot < 0 ? NULL : row + 16 * e->slot);
        *found += e->slot >= 0;
    }
    return p;
}

static u8 *new_cells(Py_ssize_t slots, Py_ssize_t n, PyObject **object) {
    *object = PyBytes_FromStringAndSize(NULL, 16 * slots * n);
    return *object ? (u8 *)PyBytes_AsString(*object) : NULL;
}

/* walk(data, offsets, places, kinds, slots, handle, of_inserts, of_others) -> (old cells, new cells, whether old images lack
   values) or None */
static PyObject *walk(PyObject *module, PyObject *args) {
    Py_buffer data, offsets, places, kinds, shapes[3];
    Py_ssize_t slots, olds = 0, news = 0;
    PyObject *old_object = NULL, *new_object = NULL, *result = NULL;
    u8 *old, *new;
    int lacks = 0;
    if (!PyArg_ParseTuple(args, "y*y*y*y*ny*y*y*", &data, &offsets, &places, &kinds, &slots, shapes, shapes + 1, shapes + 2)) return NULL;
    const u8 *base = data.buf, *kind = kinds.buf;
    Py_ssize_t n = kinds.len, rows = offsets.len / 8 - 1, counts[3];
    Entry *entries[3] = {NULL, NULL, NULL};
    if (places.len != 8 * n || slots <= 0) {
        PyErr_SetString(PyExc_ValueError, "a kind for each place, and at least one column");
        goto done;
    }
    for (int i = 0; i < 3; i++) { /* a copy, for it to be aligned */
        counts[i] = shapes[i].len / (Py_ssize_t)sizeof(Entry);
        if (!(entries[i] = malloc((size_t)shapes[i].len + 1))) {
            PyErr_NoMemory();
            goto done;
        }
        memcpy(entries[i], shapes[i].buf, (size_t)shapes[i].len);
        for (Py_ssize_t e = 0; e < counts[i]; e++)
            if (entries[i][e].slot >= slots || entries[i][e].width > sizeof entries[i][e].header) {
                PyErr_SetString(PyExc_ValueError, "a shape of another table");
                goto done;
            }
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        if (kind[i] > DELETE) goto refused;
        olds += kind[i] != INSERT, news += kind[i] != DELETE;
    }
    if (!(old = new_cells(slots, olds, &old_object)) || !(new = new_cells(slots, news, &new_object))) goto done;
    size_t width = 16 * (size_t)slots;
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t at = i64(places.buf, i);
        if (at < 0 || at >= rows) {
            PyErr_SetString(PyExc_ValueError, "a place behind the rows");
            goto done;
        }
        int64_t from = i64(offsets.buf, at), to = i64(offsets.buf, at + 1);
        if (from < 0 || to < from || to > data.len) {
            PyErr_SetString(PyExc_ValueError, "a row outside of the data");
            goto done;
        }
        const u8 *p = base + from, *end = base + to, *pairs = p;
        Py_ssize_t before = 0, after = 0;
        if (kind[i] != INSERT) {
            memset(old, ABSENT, width);
            p = image(base, p, end, entries[2], counts[2], old, &before);
            lacks |= before < slots;
        }
        if (kind[i] != DELETE) memset(new, ABSENT, width);
        if (kind[i] == INSERT) {
            for (Py_ssize_t e = 0; p && e < counts[0]; e++)
                p = datum(base, p, end, entries[0][e].flags, entries[0][e].slot < 0 ? NULL : new + 16 * entries[0][e].slot);
            if (!p) goto refused;
            pairs = p;
            p = image(base, p, end, entries[1], counts[1], new, &after);
        } else if (p && kind[i] == UPDATE) {
            p = image(base, p, end, entries[2], counts[2], new, &after);
            if (before != after) goto refused;
            for (size_t s = 7; before < slots && s < width; s += 16) /* the same columns in both */
                if ((old[s] == ABSENT) != (new[s] == ABSENT)) goto refused;
        }
        old += kind[i] != INSERT ? width : 0, new += kind[i] != DELETE ? width : 0;
        if (!p || (p != end && !(p == pairs && end - p == 1 && *p == 0))) goto refused;
    }
    result = Py_BuildValue("(OOO)", old_object, new_object, lacks ? Py_True : Py_False);
    goto done;
refused:
    result = Py_NewRef(Py_None);
done:
    for (int i = 0; i < 3; i++) free(entries[i]), PyBuffer_Release(shapes + i);
    PyBuffer_Release(&data), PyBuffer_Release(&offsets), PyBuffer_Release(&places), PyBuffer_Release(&kinds);
    Py_XDECREF(old_object);
    Py_XDECREF(new_object);
    return result;
}

/* gather(data, cells, slots, slot, places, padding) -> (bytes, int64 offsets): the bytes of a column's cells at some places */
static PyObject *gather(PyObject *module, PyObject *args) {
    Py_buffer data, found, places;
    Py_ssize_t slots, slot, padding;
    PyObject *bytes = NULL, *offsets = NULL, *result = NULL;
    Cells c;
    if (!PyArg_ParseTuple(args, "y*y*nny*n", &data, &found, &slots, &slot, &places, &padding)) return NULL;
    Py_ssize_t n = places.len / 8, size = 0;
    if (!cells_of(&c, &found, slots)) goto done;
    if (slot < 0 || slot >= slots || padding < 0 || !(offsets = PyBytes_FromStringAndSize(NULL, 8 * n + 8))) goto wrong;
    u8 *into = (u8 *)PyBytes_AsString(offsets);
    for (Py_ssize_t i = 0; i <= n; i++) {
        int64_t offset = size;
        memcpy(into + 8 * i, &offset, 8);
        if (i == n) break;
        int64_t place = i64(places.buf, i);
        if (place < 0 || place >= c.n) goto wrong;
        Cell cell = cell_at(&c, place, slot);
        if (!is_within(cell, &data)) goto wrong;
        size += (Py_ssize_t)length_of(cell);
    }
    if (!(bytes = PyBytes_FromStringAndSize(NULL, size + padding))) goto done;
    u8 *to = (u8 *)PyBytes_AsString(bytes);
    for (Py_ssize_t i = 0; i < n; i++) {
        Cell cell = cell_at(&c, i64(places.buf, i), slot);
        uint64_t length = length_of(cell);
        if (length) memcpy(to, (const u8 *)data.buf + start_of(cell), (size_t)length);
        to += length;
    }
    memset(to, 0, (size_t)padding);
    result = PyTuple_Pack(2, bytes, offsets);
wrong:
    if (!result && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "cells of other data");
done:
    PyBuffer_Release(&data), PyBuffer_Release(&found), PyBuffer_Release(&places);
    Py_XDECREF(bytes);
    Py_XDECREF(offsets);
    return result;
}

enum { DIFFERENT, SAME, UNSURE };

/* What two values of a column are to each other. Bytes that are equal are the same value; of some types others are, too. */
static int compared(int code, const u8 *data, Cell a, Cell b) {
    u8 f = flag_of(a), g = flag_of(b);
    if (f == ABSENT || g == ABSENT) return f == g ? SAME : UNSURE;
    if (f == NIL || g == NIL) return f == g ? SAME : DIFFERENT;
    if (f != g) return UNSURE;
    if (f == VARINT || f == UVARINT || f == DURATION) {
        if (a.word == b.word) return SAME;
        if (code == NUMBER) return DIFFERENT;
        return code == MOMENT && a.word >> 24 != b.word >> 24 ? DIFFERENT : UNSURE;
    }
    if (f != COMPACT && f != DECIMAL && f != JSON && f != FLOAT) return UNSURE;
    uint64_t length = length_of(a);
    const u8 *p = data + start_of(a), *q = data + start_of(b);
    if (length == length_of(b) && (!length || !memcmp(p, q, (size_t)length))) return SAME;
    if (f == COMPACT) return DIFFERENT;
    /* 0 and -0 are one DECIMAL */
    return f == DECIMAL && a.word > 2 && b.word > 2 && p[0] == q[0] && p[1] == q[1] && !((p[2] ^ q[2]) & 0x80) ? DIFFERENT : UNSURE;
}

/* alike(data, old, new, codes, old places, new places) -> a byte for each pair: DIFFERENT, SAME or UNSURE; of a column with the
   code UNLOOKED nothing is looked at */
static PyObject *alike(PyObject *module, PyObject *args) {
    Py_buffer data, old, new, codes, at_old, at_new;
    PyObject *result = NULL;
    Cells a, b;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*", &data, &old, &new, &codes, &at_old, &at_new)) return NULL;
    Py_ssize_t n = at_old.len / 8;
    if (!cells_of(&a, &old, codes.len) || !cells_of(&b, &new, codes.len)) goto done;
    if (at_new.len != at_old.len) goto wrong;
    if (!(result = PyBytes_FromStringAndSize(NULL, n))) goto done;
    u8 *into = (u8 *)PyBytes_AsString(result);
    for (Py_ssize_t k = 0; k < n; k++) {
        int64_t i = i64(at_old.buf, k), j = i64(at_new.buf, k);
        if (i < 0 || i >= a.n || j < 0 || j >= b.n) goto wrong;
        int found = SAME;
        for (Py_ssize_t s = 0; s < codes.len && found != DIFFERENT; s++) {
            int code = ((const u8 *)codes.buf)[s];
            if (code == UNLOOKED) continue;
            Cell x = cell_at(&a, i, s), y = cell_at(&b, j, s);
            if (!is_within(x, &data) || !is_within(y, &data)) goto wrong;
            int one = compared(code, data.buf, x, y);
            if (one != SAME) found = one;
        }
        into[k] = (u8)found;
    }
    goto done;
wrong:
    Py_CLEAR(result);
    PyErr_SetString(PyExc_ValueError, "cells of other data");
done:
    PyBuffer_Release(&data), PyBuffer_Release(&old), PyBuffer_Release(&new), PyBuffer_Release(&codes);
    PyBuffer_Release(&at_old), PyBuffer_Release(&at_new);
    return result;
}

static PyMethodDef functions[] = {
    {"walk", walk, METH_VARARGS, NULL},
    {"gather", gather, METH_VARARGS, NULL},
    {"alike", alike, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_compiled", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__compiled(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "EDITION", EDITION)) Py_CLEAR(module);
    return module;
}
