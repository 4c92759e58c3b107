/* fuzz_ps.c - any bytes as a message of parameter servers: as they are, and with the magic number that
 * they must have. What is accepted lies within the bytes, and is the same when it is written again. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "fuzz/driver.h"
#include "ps/message.h"
#include "ps/store.h"
#include "ps/units.h"

enum { TABLES = 3 };

static const uint32_t widths[TABLES] = { 3, 1, 8 };

#define U32(low_) low_ "\0\0\0"
#define U64(low_) low_ "\0\0\0\0\0\0\0"
#define ONE "\0\0\x80\x3f"
#define HEAD(kind_, number_, first_, n_sections_)                                                  \
    "tps\x03" U32(kind_) U64("\x09") U32("\x01") U32(number_) U64(first_) ONE U32(n_sections_)
#define SECTION(table_, n_) U32(table_) U32("\0") U64(n_)
#define HALF "\0\0\0\0\0\0\xe0\x3f"
#define HYPER                                                                                      \
    HALF HALF HALF HALF HALF HALF HALF U32("\x01") U32("\0") U64("\x09") ONE U32("\0") U64("\0")
#define SET4 U64("\xff") U64("\0") U64("\x01") U64("\0")
#define SET SET4 SET4 SET4 SET4
#define ZEROS(x_) x_ x_ x_ x_ x_ x_ x_ x_
#define FILL(kind_) U32(kind_) U32("\x07") U64("\x08") HALF
#define TABLE(rows_, width_)                                                                       \
    U64(rows_) U32(width_) U32("\x01") HALF HALF FILL("\0") U32("\0") U32("\0") U64("\0") U64("\0")
#define DYNAMIC(width_)                                                                            \
    U64("\0") U32(width_) U32("\0") HALF HALF FILL("\x01") U32("\x02") U32("\x02") U64("\x05") U64("\0")

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED(HEAD("\x01", "\0", "\0", "\0") HYPER U32("\x04") U32("\x02") HALF TABLE("\x64", "\x03")
                  TABLE("\x01", "\x08") U64("\x08") "a\0b\0\0\0\0\0"),
    FUZZ_SEED(HEAD("\x01", "\0", "\0", "\0") HYPER U32("\x04") U32("\x01") HALF DYNAMIC("\x03")
                  U64("\x08") "a\0\0\0\0\0\0\0"),
    FUZZ_SEED(HEAD("\x0f", "\x05", "\x02", "\x01") U32("\x01") U32("\x02") U64("\x02") U64("\x03")
                  U64("\x04") U64("\x05") U64("\x05") U64("\x01") U64("\x02") ONE ONE ONE ONE),
    FUZZ_SEED(HEAD("\x02", "\0", "\0", "\0")),
    FUZZ_SEED(HEAD("\x03", "\0", "\0", "\0") SET),
    FUZZ_SEED(HEAD("\x04", "\0", "\0", "\0") HYPER SET SET),
    FUZZ_SEED(HEAD("\x05", "\x03", "\0", "\0") SET),
    FUZZ_SEED(HEAD("\x06", "\x05", "\x40", "\x01") SECTION("\0", "\x01") ONE ONE ONE "\0\0\0\0"),
    FUZZ_SEED(HEAD("\x07", "\0", "\0", "\0")),
    FUZZ_SEED(HEAD("\x08", "\0", "\0", "\x02") SECTION("\0", "\x02") SECTION("\x01", "\x01")
                  U64("\x01") U64("\x41") U64("\x07")),
    FUZZ_SEED(HEAD("\x09", "\0", "\0", "\x02") SECTION("\0", "\x01") SECTION("\x01", "\x02")
                  ONE ONE ONE "\0\0\0\0" ONE ONE),
    FUZZ_SEED(HEAD("\x0a", "\x02", "\x02", "\x01") SECTION("\x01", "\x01") U64("\x05") ONE
              "\0\0\0\0"),
    FUZZ_SEED(HEAD("\x0b", "\0", "\0", "\0") ZEROS(ZEROS(ZEROS(ZEROS("\0\0\0"))))),
    FUZZ_SEED(HEAD("\x0c", "\0", "\0", "\0") HYPER),
    FUZZ_SEED(HEAD("\x0d", "\0", "\0", "\0")),
    FUZZ_SEED(HEAD("\x0e", "\0", "\0", "\0") SET4 SET4 SET4 SET4 SET4 SET4 SET4 SET4 SET4 SET4 SET4 SET4
                  U64("\x08") "folder\0\0"),
    FUZZ_SEED(HEAD("\x10", "\x01", "\0", "\0")),
    FUZZ_SEED(HEAD("\x11", "\x0d", "\x09", "\0") SET4 SET4 SET4 SET4 SET4 SET4 SET4 SET4 U64("\x08")
              "\0\0\0\0\0\0\0\0"),
    FUZZ_SEED(HEAD("\x12", "\0", "\0", "\0")),
    FUZZ_SEED(HEAD("\x16", "\0", "\0", "\0")),
    FUZZ_SEED(HEAD("\x18", "\0", "\0", "\0")),
};
const size_t n_fuzz_seeds = COUNT_OF(fuzz_seeds);

static void copy(struct ps_writer *w, const void *from, size_t n)
{
    if (n > 0)
        memcpy(ps_write_room(w, n), from, n);
}

static void write_ids(struct ps_writer *w, const struct ps_message *m)
{
    const struct ps_section *x = m->sections;
    struct ps_ids_room out;

    CHECK(m->n_sections == 1 && x->table < TABLES && (uintptr_t)x->values % 8 == 0);
    CHECK(ps_write_copy_ids(w, m, x->table, x->part, x->n, widths[x->table], &out) == 0);
    memcpy(out.rows, x->rows, x->n * sizeof(*x->rows));
    memcpy(out.last_steps, m->last_steps, x->n * sizeof(*x->rows));
    memcpy(out.counts, m->counts, x->n * sizeof(*x->rows));
    memcpy(out.values, x->values, ps_padded(x->n * x->part * widths[x->table]));
}

/* A ledger that is accepted has the bytes that it was read from. */
static void read_ledger(const struct ps_message *m)
{
    struct ps_units u;
    struct err err = { 0 };
    uint8_t *again;

    CHECK(ps_units_open(&u, 70, 2, &err) == 0);
    if (ps_units_read(&u, m->ledger, m->ledger_bytes, &err) == 0) {
        again = malloc(m->ledger_bytes);
        CHECK(again != NULL && ps_units_bytes(&u) == m->ledger_bytes);
        ps_units_write(&u, again);
        CHECK(memcmp(again, m->ledger, 16) == 0);
        free(again);
    }
    ps_units_close(&u);
}

static void write_again(struct ps_writer *w, const struct ps_message *m)
{
    const char **names = calloc((size_t)m->n_tables + 1, sizeof(*names)), *name = m->names;

    CHECK(names != NULL);
    if (m->kind == PS_COPY_IDS) {
        free(names);
        write_ids(w, m);
        return;
    }
    ps_write_begin(w, m, m->n_sections);
    for (uint32_t i = 0; i < m->n_sections; i++) {
        const struct ps_section *x = &m->sections[i];

        CHECK((uintptr_t)x->rows % 8 == 0 && (uintptr_t)x->values % 8 == 0 && x->table < TABLES);
        if (x->rows != NULL)
            copy(w, x->rows, x->n * sizeof(*x->rows));
        if (x->values != NULL)
            copy(w, x->values, ps_padded(x->n * widths[x->table]));
        ps_write_section(w, i, x->table, x->part, x->n);
        CHECK(ps_written_rows(w, i) == x->n);
    }
    if (m->shards != NULL)
        ps_write_set(w, m->shards);
    if (m->copied != NULL)
        ps_write_set(w, m->copied);
    if (m->followed != NULL)
        ps_write_set(w, m->followed);
    for (uint32_t i = 0; i < m->n_tables; i++, name += strlen(name) + 1)
        names[i] = name;
    if (m->kind == PS_SETUP)
        ps_write_setup(w, m, names);
    if (m->ledger != NULL) {
        copy(w, m->history, 2 * sizeof(*m->history));
        *(uint64_t *)ps_write_room(w, sizeof(uint64_t)) = m->ledger_bytes;
        copy(w, m->ledger, m->ledger_bytes);
        read_ledger(m);
    }
    if (m->kind == PS_GO)
        ps_write_go(w, m->n_lanes, m->facts, m->n_facts);
    if (m->kind == PS_SAVE || m->kind == PS_LOAD || m->kind == PS_DONE)
        ps_write_save(w, m->places, m->text);
    if (m->sizes != NULL)
        ps_write_sizes(w, m->sizes, m->number);
    if (m->kind == PS_VOTE) {
        copy(w, m->checksums, PS_SHARDS * sizeof(*m->checksums));
        copy(w, m->squares, PS_SHARDS * sizeof(*m->squares));
    }
    free(names);
}

static void fuzz_read(const uint8_t *data, size_t n)
{
    static struct ps_section sections[PS_TABLES_MAX];
    struct ps_writer w = { 0 };
    struct ps_message m;
    struct err err = { 0 };

    if (ps_message_read(data, n, widths, TABLES, sections, &m, &err) < 0) {
        CHECK(err.code == ERR_PEER && err.text[0] != '\0');
        return;
    }
    fuzz_accept();
    CHECK(m.kind > 0 && m.kind < PS_KINDS && m.n_sections <= PS_TABLES_MAX);
    write_again(&w, &m);
    CHECK(!w.failed && w.n == n && memcmp(w.data, data, n) == 0);
    ps_writer_fini(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *message = calloc(1, size > 0 ? size : 1); /* aligned; is changed */

    CHECK(message != NULL);
    if (size > 0)
        memcpy(message, data, size);
    fuzz_read(message, size);
    if (size >= 8) {
        memcpy(message, "tps\x03", 4);
        message[4] = message[4] % PS_KINDS;
        memset(message + 5, 0, 3);
        fuzz_read(message, size);
    }
    free(message);
    return 0;
}
