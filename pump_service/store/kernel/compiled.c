/* The compiled kernel of reading windows: what the first bytes of records of the value log say, and their payloads, one behind
   the other.

   Places come from the index and lengths from the file: both may be anything. Every one is held against the data that was read
   before anything there is looked at. No error is made here: what isn't as it should be is said so, and the Python code that calls
   it looks at it again, and reports it.
*/
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#define EDITION 2 /* as in __init__.py: what was compiled from other sources isn't used */
#define MAGIC 0x823A56E8u

enum { HEADER = 16, HEAD = 22 };
enum { NOTHING, KNOWN, UNCHECKED, ODD }; /* what is at a place; __init__.py has the same numbers */

typedef unsigned char u8;

static int64_t i64(const void *p, Py_ssize_t i) {
    int64_t v;
    memcpy(&v, (const u8 *)p + 8 * i, 8);
    return v;
}

static uint32_t u32(const u8 *p) { return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24; }

static uint64_t u64(const u8 *p) { return u32(p) | (uint64_t)u32(p + 4) << 32; }

/* CRC-32C (Castagnoli), by the processor where it can. */

static uint32_t table[8][256];

static void fill_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
        table[0][i] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++) table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 0xFF];
}

static uint32_t crc_by_table(const u8 *p, size_t size) {
    uint32_t crc = 0xFFFFFFFFu;
    for (; size >= 8; size -= 8, p += 8) {
        uint32_t low = crc ^ u32(p), high = u32(p + 4);
        crc = table[7][low & 0xFF] ^ table[6][low >> 8 & 0xFF] ^ table[5][low >> 16 & 0xFF] ^ table[4][low >> 24] ^ table[3][high & 0xFF] ^
              table[2][high >> 8 & 0xFF] ^ table[1][high >> 16 & 0xFF] ^ table[0][high >> 24];
    }
    for (; size; size--, p++) crc = crc >> 8 ^ table[0][(crc ^ *p) & 0xFF];
    return ~crc;
}

static uint32_t (*crc32c)(const u8 *, size_t) = crc_by_table;

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc_by_processor(const u8 *p, size_t size) {
    uint64_t crc = 0xFFFFFFFFu;
    for (; size >= 8; size -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        crc = __builtin_ia32_crc32di(crc, word);
    }
    for (; size; size--, p++) crc = __builtin_ia32_crc32qi((uint32_t)crc, *p);
    return ~(uint32_t)crc;
}

static int processor_has_it(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__linux__)
static uint32_t crc_by_processor(const u8 *p, size_t size) {
    uint32_t crc = 0xFFFFFFFFu;
    for (; size >= 8; size -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    }
    for (; size; size--, p++) __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)*p));
    return ~crc;
}

static int processor_has_it(void) { return (getauxval(AT_HWCAP) & 1 << 7) != 0; }
#else
#define crc_by_processor crc_by_table
static int processor_has_it(void) { return 0; }
#endif

/* The value of a varint of nine bytes; 0 if it is another one, which a timestamp of ours never is. */
static int nine(const u8 *p, int64_t *value) {
    uint64_t v = 0;
    for (int i = 0; i < 9; i++) {
        if ((p[i] >= 0x80) != (i < 8)) return 0;
        v |= (uint64_t)(p[i] & 0x7F) << 7 * i;
    }
    *value = (int64_t)v;
    return 1;
}

typedef struct {
    int64_t length, crc, tp, start, commit, state;
} Look;

/* What is at a place of the data. `tp` to `commit` are there if the message begins as TiDB's encoder writes it. */
static Look look_at(const Py_buffer *data, int64_t at) {
    Look l = {0, 0, 0, 0, 0, NOTHING};
    u8 head[HEAD] = {0};
    if (at < 0 || at > data->len || data->len - at < HEADER) return l;
    const u8 *p = (const u8 *)data->buf + at;
    uint64_t left = (uint64_t)(data->len - at - HEADER);
    if (u32(p) != MAGIC || !u64(p + 4)) return l; /* a header without payload is no record */
    l.length = (int64_t)u64(p + 4), l.crc = u32(p + 12), l.state = ODD;
    memcpy(head, p + HEADER, left < HEAD ? left : HEAD);
    int64_t start, commit = head[13];
    int is_short = head[13] < 0x80;
    if (head[0] != 0x08 || head[1] >= 0x80 || head[2] != 0x10 || !nine(head + 3, &start) || head[12] != 0x18) return l;
    if ((!is_short && !nine(head + 13, &commit)) || l.length < (is_short ? 14 : HEAD)) return l;
    l.tp = head[1], l.start = start, l.commit = commit, l.state = UNCHECKED;
    /* Prewrites are checked when their payload is read; all else is small and decides what belongs together. */
    if (!l.tp) l.state = KNOWN;
    else if ((uint64_t)l.length <= left && crc32c(p + HEADER, (size_t)l.length) == (uint32_t)l.crc) l.state = KNOWN;
    return l;
}

/* look(data, base, offsets, into): for each record at `offsets` (int64) of a file, of which `data` lies at `base`, length, crc, tp,
   start_ts, commit_ts and what is there, to `into` (int64) */
static PyObject *look(PyObject *module, PyObject *args) {
    Py_buffer data, offsets, into;
    long long base;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*Ly*w*", &data, &base, &offsets, &into)) return NULL;
    Py_ssize_t n = offsets.len / 8;
    if (base < 0 || into.len != n * (Py_ssize_t)sizeof(Look)) {
        PyErr_SetString(PyExc_ValueError, "six numbers for each place");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t offset = i64(offsets.buf, i);
        Look l = look_at(&data, offset < base ? -1 : offset - base);
        memcpy((u8 *)into.buf + i * (Py_ssize_t)sizeof l, &l, sizeof l);
    }
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    PyBuffer_Release(&data), PyBuffer_Release(&offsets), PyBuffer_Release(&into);
    return result;
}

/* place(data, base, offsets, lengths, crcs, targets, into): the payloads of the records at `offsets` of a file, of which `data` lies at
   `base`, into `into`, each at its target (all int64); False if one isn't there or has another CRC */
static PyObject *place(PyObject *module, PyObject *args) {
    Py_buffer data, offsets, lengths, crcs, targets, into;
    long long base;
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*Ly*y*y*y*w*", &data, &base, &offsets, &lengths, &crcs, &targets, &into)) return NULL;
    Py_ssize_t n = offsets.len / 8;
    if (base < 0 || lengths.len != offsets.len || crcs.len != offsets.len || targets.len != offsets.len) {
        PyErr_SetString(PyExc_ValueError, "a length, a CRC and a target for each place");
        goto done;
    }
    int is_good = 1;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n && is_good; i++) {
        int64_t offset = i64(offsets.buf, i), length = i64(lengths.buf, i), target = i64(targets.buf, i);
        is_good = offset >= base && offset - base <= data.len && data.len - (offset - base) >= HEADER && length >= 0 &&
                  length <= data.len - (offset - base) - HEADER && target >= 0 && target <= into.len && length <= into.len - target;
        if (!is_good || !length) continue;
        const u8 *p = (const u8 *)data.buf + (offset - base) + HEADER;
        is_good = crc32c(p, (size_t)length) == (uint64_t)i64(crcs.buf, i);
        memcpy((u8 *)into.buf + target, p, (size_t)length);
    }
    Py_END_ALLOW_THREADS
    result = PyBool_FromLong(is_good);
done:
    PyBuffer_Release(&data), PyBuffer_Release(&offsets), PyBuffer_Release(&lengths), PyBuffer_Release(&crcs);
    PyBuffer_Release(&targets), PyBuffer_Release(&into);
    return result;
}

/* crc(data, by_table) -> CRC-32C, for tests */
static PyObject *crc(PyObject *module, PyObject *args) {
    Py_buffer data;
    int by_table;
    if (!PyArg_ParseTuple(args, "y*p", &data, &by_table)) return NULL;
    PyObject *result = PyLong_FromUnsignedLong((by_table ? crc_by_table : crc32c)(data.buf, (size_t)data.len));
    PyBuffer_Release(&data);
    return result;
}

static PyMethodDef functions[] = {
    {"look", look, METH_VARARGS, NULL},
    {"place", place, METH_VARARGS, NULL},
    {"crc", crc, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_compiled", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__compiled(void) {
    fill_table();
    if (processor_has_it()) crc32c = crc_by_processor;
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "EDITION", EDITION)) Py_CLEAR(module);
    return module;
}
