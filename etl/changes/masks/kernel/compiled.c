/* The masks' compiled kernel: other values in the places of clear ones, of all rows of a table in one call.

   `rows` gets cells as `tidb/kernel` finds them, so nothing of a row is looked at but the datums of masked columns. Whatever
   isn't as nearly always is refused as a whole, by None, and the Python code that calls it does those rows: `mask_text.py` has
   the same masks, and no error is made here.
*/
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__) && defined(__GNUC__) && !defined(WITHOUT_SHA_INSTRUCTIONS)
#include <cpuid.h>
#include <immintrin.h>
#define HAS_SHA_INSTRUCTIONS 1
#endif

#define EDITION 3 /* as in __init__.py: what was compiled from other sources isn't used */

enum { NIL, COMPACT = 2, FLOAT = 5, DECIMAL, DURATION, VARINT, UVARINT, JSON, ABSENT = 255 };
enum { INSERT, UPDATE, DELETE };
enum { CONSTANT, PARTIAL, HASH, EMAIL, DIGITS, SHIFT, NUMBER, KINDS };
enum { DIGEST = 32, BLOCK = 64, HASH_DIGITS = 64, LOCAL_DIGITS = 16, ROUNDS = 10, BLOCK_DIGITS = 64, HEAD = 11, MAX_MASKS = 256 };

typedef unsigned char u8;
typedef unsigned __int128 u128;

/* ---- SHA-256 (FIPS 180-4) ---- */

static const uint32_t K[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turned(uint32_t v, int by) { return v >> by | v << (32 - by); }

static void compress_plain(uint32_t state[8], const u8 *block) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7] + (turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3) +
               (turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t one = s[7] + (turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + K[i] + w[i];
        uint32_t two = (turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one, s[0] = one + two;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

#ifdef HAS_SHA_INSTRUCTIONS
__attribute__((target("sha,sse4.1,ssse3"))) static void compress_by_instructions(uint32_t state[8], const u8 *block) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xB1);
    __m128i high = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1B);
    __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xF0);
    const __m128i first = abef, second = cdgh;
    __m128i w[4];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        if (i < 4)
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(block + 16 * i)), swap);
        else {
            __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]), _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4));
            w[i & 3] = _mm_sha256msg2_epu32(sum, w[(i + 3) & 3]);
        }
        __m128i added = _mm_add_epi32(w[i & 3], _mm_load_si128((const __m128i *)(K + 4 * i)));
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, added);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(added, 0x0E));
    }
    abef = _mm_add_epi32(abef, first), cdgh = _mm_add_epi32(cdgh, second);
    __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

static int has_sha_instructions(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 9 & 1) || !(c >> 19 & 1)) return 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1;
}
#endif

static void (*compress)(uint32_t state[8], const u8 *block) = compress_plain;

static void put_big32(u8 *p, uint32_t v) {
    v = __builtin_bswap32(v); /* the kernel runs on little-endian machines alone */
    memcpy(p, &v, 4);
}

/* Hash the rest of a message of which whole blocks are in the state already. */
static void end_hash(uint32_t state[8], uint64_t before, const u8 *rest, size_t size, u8 *digest) {
    uint64_t bits = 8 * (before + size);
    u8 last[2 * BLOCK];
    for (; size >= BLOCK; rest += BLOCK, size -= BLOCK) compress(state, rest);
    size_t padded = size + 9 > BLOCK ? 2 * BLOCK : BLOCK;
    memcpy(last, rest, size);
    last[size] = 0x80;
    memset(last + size + 1, 0, padded - size - 1);
    put_big32(last + padded - 8, (uint32_t)(bits >> 32)), put_big32(last + padded - 4, (uint32_t)bits);
    for (size_t at = 0; at < padded; at += BLOCK) compress(state, last + at);
    for (int i = 0; i < 8; i++) put_big32(digest + 4 * i, state[i]);
}

/* HMAC-SHA256 (RFC 2104) with one key, which is hashed once. */
typedef struct {
    uint32_t inner[8], outer[8];
} Key;

static const uint32_t BEGUN[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static void set_key(Key *key, const u8 *raw, size_t size) {
    u8 block[BLOCK] = {0}, pad[BLOCK];
    if (size > BLOCK) {
        uint32_t state[8];
        memcpy(state, BEGUN, sizeof state);
        end_hash(state, 0, raw, size, block);
    } else
        memcpy(block, raw, size);
    memcpy(key->inner, BEGUN, sizeof BEGUN), memcpy(key->outer, BEGUN, sizeof BEGUN);
    for (int i = 0; i < BLOCK; i++) pad[i] = block[i] ^ 0x36;
    compress(key->inner, pad);
    for (int i = 0; i < BLOCK; i++) pad[i] = block[i] ^ 0x5C;
    compress(key->outer, pad);
}

static void hmac(const Key *key, const u8 *message, size_t size, u8 *digest) {
    uint32_t state[8];
    u8 first[DIGEST];
    memcpy(state, key->inner, sizeof state);
    end_hash(state, BLOCK, message, size, first);
    memcpy(state, key->outer, sizeof state);
    end_hash(state, BLOCK, first, DIGEST, digest);
}

/* ---- masks of a text: what is written to `to`, its size is returned ---- */

typedef struct {
    int slot, kind, argument, width, other; /* see plain.py */
    const u8 *constant;
    Py_ssize_t size;
    Key key;
} Mask;

static size_t hashed(const Key *key, const u8 *value, size_t size, size_t digits, u8 *to) {
    static const char hex[] = "0123456789abcdef";
    u8 digest[DIGEST], text[HASH_DIGITS];
    hmac(key, value, size, digest);
    for (size_t i = 0; i < DIGEST; i++) text[2 * i] = (u8)hex[digest[i] >> 4], text[2 * i + 1] = (u8)hex[digest[i] & 15];
    memcpy(to, text, digits);
    return digits;
}

static size_t as_email(const Mask *m, const u8 *value, size_t size, u8 *to) {
    size_t at = size;
    while (at && value[at - 1] != '@') at--; /* behind the last @ */
    size_t domain = at ? size - at + 1 : 0;
    if (!domain || (m->argument >= 0 && LOCAL_DIGITS + domain > (size_t)m->argument)) return hashed(&m->key, value, size, (size_t)m->width, to);
    hashed(&m->key, value, size, LOCAL_DIGITS, to);
    memcpy(to + LOCAL_DIGITS, value + at - 1, domain);
    return LOCAL_DIGITS + domain;
}

/* How many bytes the character at `p` has; a byte of none is one by itself. */
static size_t character(const u8 *p, size_t left) {
    u8 a = p[0];
    size_t size = a < 0xC2 || a > 0xF4 ? 1 : a < 0xE0 ? 2 : a < 0xF0 ? 3 : 4;
    if (size > left) return 1;
    for (size_t i = 1; i < size; i++)
        if ((p[i] & 0xC0) != 0x80) return 1;
    if ((a == 0xE0 && p[1] < 0xA0) || (a == 0xED && p[1] > 0x9F) || (a == 0xF0 && p[1] < 0x90) || (a == 0xF4 && p[1] > 0x8F)) return 1;
    return size;
}

static int is_ascii(const u8 *p, size_t size) {
    uint64_t all = 0, some;
    for (; size >= 8; p += 8, size -= 8) memcpy(&some, p, 8), all |= some;
    for (; size; size--) all |= *p++;
    return !(all & 0x8080808080808080u);
}

static size_t as_partial(const Mask *m, const u8 *value, size_t size, u8 *to) {
    size_t characters = 0, kept = (size_t)m->argument, at = 0;
    if (is_ascii(value, size)) characters = size;
    else
        for (size_t p = 0; p < size; p += character(value + p, size - p)) characters++;
    size_t hidden = characters > kept ? characters - kept : characters;
    if (characters == size) at = hidden;
    else
        for (size_t i = 0; i < hidden; i++) at += character(value + at, size - at);
    memset(to, '*', hidden);
    if (hidden == characters) return hidden;
    memcpy(to + hidden, value + at, size - at);
    return hidden + size - at;
}

static size_t put(u8 *to, const char *text) {
    size_t size = strlen(text);
    memcpy(to, text, size);
    return size;
}

static size_t put_number(u8 *to, size_t number) {
    u8 digits[20];
    size_t n = 0;
    do digits[n++] = (u8)('0' + number % 10);
    while (number /= 10);
    for (size_t i = 0; i < n; i++) to[i] = digits[n - 1 - i];
    return n;
}

static u128 POWERS[BLOCK_DIGITS / 2 + 1];      /* of ten */
static u128 PLACES[BLOCK_DIGITS / 2 + 1][16]; /* 2^(16 i) modulo each */

static void make_tables(void) {
    POWERS[0] = 1;
    for (int n = 1; n <= BLOCK_DIGITS / 2; n++) POWERS[n] = 10 * POWERS[n - 1];
    for (int n = 0; n <= BLOCK_DIGITS / 2; n++) {
        u128 place = 1 % POWERS[n];
        for (int i = 0; i < 16; i++, place = (place << 16) % POWERS[n]) PLACES[n][i] = place;
    }
}

/* A digest as one number, modulo a power of ten: the sum of 16 products stays below 2^127. */
static u128 modulo(const u8 *digest, size_t digits) {
    u128 sum = 0;
    for (int i = 0; i < 16; i++) sum += PLACES[digits][i] * (unsigned)(digest[30 - 2 * i] << 8 | digest[31 - 2 * i]);
    return sum % POWERS[digits];
}

/* Other digits, as many: a Feistel network as FF1's, HMAC-SHA256 in its rounds. */
static void permute(const Key *key, size_t block, u8 *digits, size_t size) {
    u8 one[BLOCK_DIGITS], two[BLOCK_DIGITS], *left = one, *right = two, message[128], digest[DIGEST];
    size_t lefts = size / 2, rights = size - lefts;
    memcpy(left, digits, lefts), memcpy(right, digits + lefts, rights);
    size_t begun = put(message, "digits/");
    begun += put_number(message + begun, block), message[begun++] = '/';
    begun += put_number(message + begun, size), message[begun++] = '/';
    for (int number = 0; number < ROUNDS; number++) {
        if (lefts) {
            size_t at = begun;
            message[at++] = (u8)('0' + number), message[at++] = '/';
            memcpy(message + at, right, rights);
            hmac(key, message, at + rights, digest);
            u128 sum = 0;
            for (size_t i = 0; i < lefts; i++) sum = 10 * sum + (unsigned)(left[i] - '0');
            sum += modulo(digest, lefts);
            if (sum >= POWERS[lefts]) sum -= POWERS[lefts];
            uint64_t parts[2] = {(uint64_t)sum, 0};
            if (lefts > 16) parts[0] = (uint64_t)(sum % POWERS[16]), parts[1] = (uint64_t)(sum / POWERS[16]);
            for (size_t i = 0; i < lefts; i++) {
                uint64_t *part = parts + i / 16;
                left[lefts - 1 - i] = (u8)('0' + *part % 10), *part /= 10;
            }
        }
        u8 *other = left;
        left = right, right = other;
        size_t count = lefts;
        lefts = rights, rights = count;
    }
    memcpy(digits, left, lefts), memcpy(digits + lefts, right, rights);
}

static size_t as_digits(const Mask *m, const u8 *value, size_t size, u8 *to) {
    memcpy(to, value, size);
    for (size_t at = 0, block = 0; at < size; block++) {
        u8 digits[BLOCK_DIGITS];
        size_t count = 0, end = at;
        for (; end < size && count < BLOCK_DIGITS; end++)
            if (value[end] >= '0' && value[end] <= '9') digits[count++] = value[end];
        permute(&m->key, block, digits, count);
        for (count = 0; at < end; at++)
            if (value[at] >= '0' && value[at] <= '9') to[at] = digits[count++];
    }
    return size;
}

enum { IS_TIMESTAMP = 1, IS_UNSIGNED = 2 }; /* see kernel_masks.py */

/* Another whole number of its sign and of as many digits: the permutation is repeated until the type holds what comes out, without a
   leading zero. 0: the type doesn't hold the number itself. */
static int number(const Mask *m, uint64_t *word) {
    int is_unsigned = m->width & IS_UNSIGNED, negative = !is_unsigned && *word >> 63;
    uint64_t found = negative ? 0 - *word : *word, half = (uint64_t)1 << (m->argument - 1), last = is_unsigned ? half - 1 + half : negative ? half : half - 1;
    u8 digits[20];
    size_t size = put_number(digits, (size_t)found);
    u128 first = size > 1 ? POWERS[size - 1] : (u128)negative, sum;
    if (found > last) return 0;
    do {
        permute(&m->key, 0, digits, size);
        sum = 0;
        for (size_t i = 0; i < size; i++) sum = 10 * sum + (unsigned)(digits[i] - '0');
    } while (sum < first || sum > last);
    *word = negative ? 0 - (uint64_t)sum : (uint64_t)sum;
    return 1;
}

static size_t masked_text(const Mask *m, const u8 *value, size_t size, u8 *to) {
    if (!size) return 0;
    switch (m->kind) {
    case PARTIAL: return as_partial(m, value, size, to);
    case HASH: return hashed(&m->key, value, size, (size_t)m->width, to);
    case EMAIL: return as_email(m, value, size, to);
    default: return as_digits(m, value, size, to);
    }
}

/* ---- dates ---- */

enum { MAX_PERSON_BYTES = 512 };
enum { FIRST_DAY = -719162, LAST_DAY = 2932896, LAST_TIMESTAMP_DAY = 24855 }; /* days since 1970; 0001-01-01, 9999-12-31, 2038-01-19 */

static int is_date(int64_t year, int64_t month, int64_t day) {
    static const u8 days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int leap = month == 2 && year % 4 == 0 && (year % 100 || year % 400 == 0);
    return year > 0 && month > 0 && day > 0 && day <= days[month - 1] + leap;
}

static int64_t day_of(int64_t year, int64_t month, int64_t day) {
    year -= month <= 2;
    int64_t era = year / 400, of_era = year - 400 * era, of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

/* A packed moment some days later or earlier, as many as its type has room for; of what is no date the zero date. */
static uint64_t shifted(uint64_t packed, int64_t days, int is_timestamp) {
    int64_t ymd = (int64_t)(packed >> 41), year = (ymd >> 5) / 13, month = (ymd >> 5) % 13, day = ymd & 31;
    uint64_t time = packed & (((uint64_t)1 << 41) - 1), seconds = time >> 24;
    if (!is_date(year, month, day)) return 0;
    int64_t first = is_timestamp ? seconds < 1 : FIRST_DAY, last = is_timestamp ? LAST_TIMESTAMP_DAY : LAST_DAY;
    if (is_timestamp && seconds > (3 << 12 | 14 << 6 | 7)) last--;
    int64_t found = day_of(year, month, day) + days;
    found = (found < first ? first : found > last ? last : found) + 719468;
    int64_t era = found / 146097, of_era = found - era * 146097;
    int64_t years = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int64_t of_year = of_era - (365 * years + years / 4 - years / 100), part = (5 * of_year + 2) / 153;
    day = of_year - (153 * part + 2) / 5 + 1, month = part + (part < 10 ? 3 : -9), year = years + era * 400 + (month <= 2);
    return (uint64_t)((year * 13 + month) << 5 | day) << 41 | time;
}

/* The days of a row, by the cell of its column of persons; 0: it isn't as nearly always. */
static int64_t days_of(const Mask *m, const u8 *data, const u8 *cells, uint64_t begin, uint64_t end) {
    if (m->other < 0) return m->argument;
    uint64_t place, word;
    memcpy(&place, cells + 16 * m->other, 8), memcpy(&word, cells + 16 * m->other + 8, 8);
    uint64_t flag = place >> 56, start = place & (((uint64_t)1 << 56) - 1);
    u8 message[64 + MAX_PERSON_BYTES], digest[DIGEST];
    size_t size = put(message, "shift-days/");
    size += put_number(message + size, (size_t)m->argument), message[size++] = '/';
    switch (flag) {
    case NIL: break;
    case COMPACT:
        if (start < begin || start > end || word > end - start || word > MAX_PERSON_BYTES) return 0;
        message[size++] = '=';
        memcpy(message + size, data + start, (size_t)word), size += (size_t)word;
        break;
    case VARINT: case UVARINT:
        message[size++] = '=';
        if (!(m->width & IS_UNSIGNED) && word >> 63) message[size++] = '-', word = 0 - word;
        size += put_number(message + size, (size_t)word);
        break;
    default: return 0;
    }
    hmac(&m->key, message, size, digest);
    uint64_t number = 0;
    for (int i = 0; i < 8; i++) number = number << 8 | digest[i];
    int64_t days = (int64_t)(number % (2 * (uint64_t)m->argument)) - m->argument;
    return days < 0 ? days : days + 1;
}

/* How many bytes a value can become longer by, its length included. */
static Py_ssize_t growth(const Mask *m) { return m->kind == CONSTANT ? m->size : m->kind == HASH || m->kind == EMAIL ? HASH_DIGITS + HEAD : HEAD; }

/* ---- the functions ---- */

static int mask_of(PyObject *object, Mask *m) {
    const char *bytes;
    if (!PyArg_ParseTuple(object, "iiiiiy#", &m->slot, &m->kind, &m->argument, &m->width, &m->other, &bytes, &m->size)) return 0;
    if (m->kind < 0 || m->kind >= KINDS || m->width < 0 || m->width > HASH_DIGITS || (m->kind == PARTIAL && m->argument < 0) ||
        (m->kind == SHIFT && m->other >= 0 && m->argument < 1) || (m->kind == NUMBER && (m->argument < 1 || m->argument > 64))) {
        PyErr_SetString(PyExc_ValueError, "there is no such mask");
        return 0;
    }
    m->constant = (const u8 *)bytes;
    if (m->kind > PARTIAL) set_key(&m->key, (const u8 *)bytes, (size_t)m->size);
    return 1;
}

static int64_t i64(const void *p, Py_ssize_t i) {
    int64_t v;
    memcpy(&v, (const u8 *)p + 8 * i, 8);
    return v;
}

static void put_i64(u8 *p, Py_ssize_t i, int64_t v) { memcpy(p + 8 * i, &v, 8); }

/* values(data, offsets, padding, mask) -> (bytes, int64 offsets): texts that lie one behind the other, masked */
static PyObject *values(PyObject *module, PyObject *args) {
    Py_buffer data, offsets;
    Py_ssize_t padding;
    PyObject *object, *bytes = NULL, *ends = NULL, *result = NULL;
    Mask m;
    if (!PyArg_ParseTuple(args, "y*y*nO", &data, &offsets, &padding, &object)) return NULL;
    Py_ssize_t n = offsets.len / 8 - 1;
    if (!mask_of(object, &m)) goto done;
    if (n < 0 || padding < 0 || m.kind == CONSTANT || m.kind >= SHIFT) {
        PyErr_SetString(PyExc_ValueError, "these are no texts to be masked");
        goto done;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if (i64(offsets.buf, i) < 0 || i64(offsets.buf, i + 1) < i64(offsets.buf, i) || i64(offsets.buf, i + 1) > data.len) {
            PyErr_SetString(PyExc_ValueError, "a value outside of the data");
            goto done;
        }
    Py_ssize_t size = (Py_ssize_t)(i64(offsets.buf, n) - i64(offsets.buf, 0)) + n * growth(&m) + padding;
    if (!(bytes = PyBytes_FromStringAndSize(NULL, size)) || !(ends = PyBytes_FromStringAndSize(NULL, 8 * n + 8))) goto done;
    u8 *to = (u8 *)PyBytes_AsString(bytes), *into = (u8 *)PyBytes_AsString(ends);
    int64_t at = 0;
    put_i64(into, 0, 0);
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t from = i64(offsets.buf, i);
        at += (int64_t)masked_text(&m, (const u8 *)data.buf + from, (size_t)(i64(offsets.buf, i + 1) - from), to + at);
        put_i64(into, i + 1, at);
    }
    memset(to + at, 0, (size_t)padding);
    result = PyTuple_Pack(2, bytes, ends);
done:
    PyBuffer_Release(&data), PyBuffer_Release(&offsets);
    Py_XDECREF(bytes);
    Py_XDECREF(ends);
    return result;
}

typedef struct {
    uint64_t flag, start, length; /* `start`, `length`: of a datum's bytes, behind its flag and what counts them */
    const Mask *mask;
} Found;

/* Compute the length of a datum's bytes, and where its flag is; 0: it isn't as nearly always. */
static int measure(const u8 *data, uint64_t begin, uint64_t end, Found *f, uint64_t *flag) {
    uint64_t head = 0;
    if (f->start < begin || f->start > end) return 0;
    switch (f->flag) {
    case COMPACT:
        if (f->length > end) return 0;
        head = 1;
        for (uint64_t length = f->length << 1; length >= 0x80; length >>= 7) head++;
        break;
    case DECIMAL: case JSON: break;
    case FLOAT: case DURATION: f->length = 8; break;
    case VARINT: case UVARINT:
        f->length = 1;
        while (f->start + f->length <= end && data[f->start + f->length - 1] & 0x80) f->length++;
        break;
    default: return 0;
    }
    if (f->length > end - f->start || f->start - begin < head + 1) return 0;
    *flag = f->start - head - 1;
    return data[*flag] == f->flag; /* else its length is written longer than it must be */
}

/* Write one image of a row from `*from` on, up to the end of its last masked value. 0: it isn't as nearly always. */
static int image(const u8 *data, const u8 *cells, const Mask *masks, int count, uint64_t begin, uint64_t end, uint64_t *from, u8 **to) {
    Found found[MAX_MASKS];
    int n = 0;
    for (int i = 0; i < count; i++) {
        uint64_t place, word;
        memcpy(&place, cells + 16 * masks[i].slot, 8), memcpy(&word, cells + 16 * masks[i].slot + 8, 8);
        Found f = {place >> 56, place & (((uint64_t)1 << 56) - 1), word, masks + i};
        if (f.flag == ABSENT || f.flag == NIL) continue;
        uint64_t usual = masks[i].kind < SHIFT ? COMPACT : masks[i].kind == SHIFT || masks[i].width & IS_UNSIGNED ? UVARINT : VARINT;
        if (f.flag != usual && masks[i].kind != CONSTANT) return 0;
        int at = n++;
        for (; at && found[at - 1].start > f.start; at--) found[at] = found[at - 1];
        found[at] = f;
    }
    for (int i = 0; i < n; i++) {
        Found *f = found + i;
        uint64_t flag;
        uint64_t word = f->length; /* of a date or number; `measure` counts its bytes */
        if (!measure(data, *from, end, f, &flag)) return 0;
        memcpy(*to, data + *from, (size_t)(flag - *from));
        *to += flag - *from;
        if (f->mask->kind == CONSTANT) {
            memcpy(*to, f->mask->constant, (size_t)f->mask->size);
            *to += f->mask->size;
        } else if (f->mask->kind == SHIFT || f->mask->kind == NUMBER) {
            if (f->mask->kind == SHIFT) {
                int64_t days = days_of(f->mask, data, cells, begin, end);
                if (!days) return 0;
                word = shifted(word, days, f->mask->width & IS_TIMESTAMP);
            } else {
                if (!number(f->mask, &word)) return 0;
                if (f->flag == VARINT) word = word << 1 ^ (0 - (word >> 63)); /* as varint.py has it */
            }
            *(*to)++ = (u8)f->flag;
            for (; word >= 0x80; word >>= 7) *(*to)++ = (u8)(word | 0x80);
            *(*to)++ = (u8)word;
        } else {
            u8 *value = *to + HEAD; /* and then where it belongs: its length is known behind it */
            size_t size = masked_text(f->mask, data + f->start, (size_t)f->length, value), length = size << 1;
            *(*to)++ = COMPACT;
            for (; length >= 0x80; length >>= 7) *(*to)++ = (u8)(length | 0x80);
            *(*to)++ = (u8)length;
            memmove(*to, value, size);
            *to += size;
        }
        *from = f->start + f->length;
    }
    return 1;
}

/* rows(data, offsets, places, kinds, old cells, new cells, slots, padding, masks) -> (bytes, int64 offsets) or None */
static PyObject *rows(PyObject *module, PyObject *args) {
    Py_buffer data, offsets, places, kinds, cells[2];
    Py_ssize_t slots, padding, size = 0;
    PyObject *objects, *bytes = NULL, *ends = NULL, *result = NULL;
    Mask *masks = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*nnO", &data, &offsets, &places, &kinds, cells, cells + 1, &slots, &padding, &objects)) return NULL;
    Py_ssize_t n = kinds.len, count = PyTuple_Size(objects), images[2] = {0, 0}, grown = 0;
    const u8 *kind = kinds.buf, *old = cells[0].buf, *new = cells[1].buf;
    if (count < 0) goto done;
    if (places.len != 8 * n || slots <= 0 || padding < 0 || count > MAX_MASKS) goto wrong;
    if (!(masks = malloc(sizeof *masks * (size_t)(count + 1)))) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *object = PyTuple_GetItem(objects, i);
        if (!object || !mask_of(object, masks + i)) goto done;
        if (masks[i].slot < 0 || masks[i].slot >= slots || masks[i].other >= slots) goto wrong;
        grown += growth(masks + i);
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t at = i64(places.buf, i);
        if (kind[i] > DELETE || at < 0 || at >= offsets.len / 8 - 1) goto wrong;
        int64_t from = i64(offsets.buf, at), to = i64(offsets.buf, at + 1);
        if (from < 0 || to < from || to > data.len) goto wrong;
        images[0] += kind[i] != INSERT, images[1] += kind[i] != DELETE;
        size += (Py_ssize_t)(to - from);
    }
    for (int i = 0; i < 2; i++)
        if (cells[i].len != 16 * slots * images[i]) goto wrong;
    size += grown * (images[0] + images[1]) + padding;
    if (!(bytes = PyBytes_FromStringAndSize(NULL, size)) || !(ends = PyBytes_FromStringAndSize(NULL, 8 * n + 8))) goto done;
    u8 *begun = (u8 *)PyBytes_AsString(bytes), *to = begun, *into = (u8 *)PyBytes_AsString(ends);
    put_i64(into, 0, 0);
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t at = i64(places.buf, i);
        uint64_t begin = (uint64_t)i64(offsets.buf, at), end = (uint64_t)i64(offsets.buf, at + 1), from = begin;
        if (kind[i] != INSERT) {
            if (!image(data.buf, old, masks, (int)count, begin, end, &from, &to)) goto refused;
            old += 16 * slots;
        }
        if (kind[i] != DELETE) {
            if (!image(data.buf, new, masks, (int)count, begin, end, &from, &to)) goto refused;
            new += 16 * slots;
        }
        memcpy(to, (const u8 *)data.buf + from, (size_t)(end - from));
        to += end - from;
        put_i64(into, i + 1, to - begun);
    }
    memset(to, 0, (size_t)padding); /* what is behind that is never looked at */
    result = PyTuple_Pack(2, bytes, ends);
    goto done;
refused:
    result = Py_NewRef(Py_None);
    goto done;
wrong:
    PyErr_SetString(PyExc_ValueError, "cells of other rows");
done:
    free(masks);
    PyBuffer_Release(&data), PyBuffer_Release(&offsets), PyBuffer_Release(&places), PyBuffer_Release(&kinds);
    PyBuffer_Release(cells), PyBuffer_Release(cells + 1);
    Py_XDECREF(bytes);
    Py_XDECREF(ends);
    return result;
}

static PyMethodDef functions[] = {
    {"values", values, METH_VARARGS, NULL},
    {"rows", rows, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_compiled", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__compiled(void) {
    make_tables();
#ifdef HAS_SHA_INSTRUCTIONS
    if (has_sha_instructions()) compress = compress_by_instructions;
#endif
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "EDITION", EDITION)) Py_CLEAR(module);
    return module;
}
