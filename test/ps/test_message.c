/* test_message.c - every kind of message written and read; every truncation, and every damaged byte. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/uio.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "ckpt/shard_files.h"
#include "harness/ring.h"
#include "opts/graph.h"
#include "ps/ledger.h"
#include "ps/message.h"
#include "ps/store.h"

enum { TABLES = 3 };

static const uint32_t widths[TABLES] = { 3, 1, 8 };
static const struct ps_setup_table setup_tables[TABLES] = {
    { .rows = 100, .width = 3, .flags = PS_TABLE_LAZY, .rate_factor = 0.5, .weight_decay = 0.25 },
    { .rows = UINT64_C(1) << 40, .width = 1, .rate_factor = 1 },
    { .rows = 0, .width = 1 << 20, .weight_decay = -1, .fill = TABLE_UNIFORM, .admit_after = 2,
      .sweep_steps = 1000, .expire_steps = UINT64_MAX, .max_rows = PS_SHARDS },
};
static const char *const names[TABLES] = { "a", "", "items.weight" };

static struct ps_section sections[PS_TABLES_MAX];

static struct ps_message sample(enum ps_kind kind)
{
    return (struct ps_message){ .kind = kind,
                                .step = UINT64_MAX - 5,
                                .first = 77,
                                .flag = kind != PS_SETUP,
                                .number = kind == PS_SAVE || kind == PS_COUNTS ? 1 : 3,
                                .clip = 0.5f,
                                .hyper = { .learning_rate = 0.1, .momentum = 0.2, .beta1 = 0.3,
                                           .beta2 = 0.4, .epsilon = 0.5, .weight_decay = 0.6,
                                           .trust_coefficient = 0.7, .nesterov = true,
                                           .step = 12, .grad_scale = 0.25f } };
}

static bool has_rows(enum ps_kind kind)
{
    return kind == PS_PULL || kind == PS_PUSH || kind == PS_COPY_IDS || kind == PS_LISTED;
}

static bool has_values(enum ps_kind kind)
{
    return kind == PS_COPY || kind == PS_ROWS || kind == PS_PUSH || kind == PS_COPY_IDS;
}

/* FETCH has one section, without rows and values. */
static uint32_t n_sections(enum ps_kind kind)
{
    if (kind == PS_COPY_IDS)
        return 1;
    return has_rows(kind) || has_values(kind) ? 3 : kind == PS_FETCH;
}

/* Three sections with 3, 0 and 2 rows, the last two of one table. */
static void write_sections(struct ps_writer *w, enum ps_kind kind)
{
    static const uint64_t counts[] = { 3, 0, 2 };
    static const uint32_t tables[] = { 0, 2, 1 };

    for (uint32_t i = 0; i < 3; i++) {
        size_t floats = counts[i] * widths[tables[i]];

        for (uint64_t k = 0; has_rows(kind) && k < counts[i]; k++)
            *(uint64_t *)ps_write_room(w, sizeof(uint64_t)) = 1000 * i + k;
        if (has_values(kind)) {
            float *values = ps_write_room(w, ps_padded(floats));

            for (size_t k = 0; k < ps_padded(floats) / sizeof(float); k++)
                values[k] = k < floats ? (float)(k + 10 * i) : 0;
        }
        ps_write_section(w, i, tables[i], 7 + i, counts[i]);
    }
}

enum { IDS = 3, ID_PARTS = 5, ID_WIDTH = 3 /* of table 0 */ };

static void write_ids(struct ps_writer *w)
{
    struct ps_message m = sample(PS_COPY_IDS);
    struct ps_ids_room out;

    assert_int_equal(ps_write_copy_ids(w, &m, 0, ID_PARTS, IDS, ID_WIDTH, &out), 0);
    for (uint64_t i = 0; i < IDS; i++) {
        out.rows[i] = UINT64_MAX - IDS + i + 1;
        out.last_steps[i] = 50 + i;
        out.counts[i] = UINT32_MAX - i;
    }
    for (uint64_t i = 0; i < IDS * ID_PARTS * ID_WIDTH; i++)
        out.values[i] = (float)i;
}

static const struct ps_message setup = { .optimizer = OPTIM_ADAM,
                                         .average = 0.75,
                                         .tables = setup_tables,
                                         .n_tables = TABLES,
                                         .n_lanes = 12,
                                         .bound = 3 };
static const struct ps_step_facts facts[] = { { .step = 3, .loss = 0.5 },
                                              { .step = 4, .norm = 2, .n_skipped = 5 } };

static void write_sample(struct ps_writer *w, enum ps_kind kind)
{
    struct ps_message m = sample(kind);
    uint64_t set[PS_SET_WORDS] = { 0 };

    if (kind == PS_COPY_IDS) {
        write_ids(w);
        return;
    }
    ps_write_begin(w, &m, n_sections(kind));
    if (has_rows(kind) || has_values(kind))
        write_sections(w, kind);
    if (kind == PS_FETCH)
        ps_write_section(w, 0, 1, 7, 0);
    ps_set_add(set, 5);
    ps_set_add(set, 1023);
    if (kind == PS_HELD || kind == PS_BEGIN || kind == PS_FOLLOW || kind == PS_FETCH ||
        kind == PS_SAVE || kind == PS_LOAD || kind == PS_COUNT || kind == PS_LIST)
        ps_write_set(w, set);
    ps_set_add(set, 64);
    if (kind == PS_BEGIN)
        ps_write_set(w, set);
    ps_set_remove(set, 5);
    if (kind == PS_BEGIN)
        ps_write_set(w, set);
    if (kind == PS_HELD || kind == PS_BEGIN)
        write_step(w, 77);
    if (kind == PS_HELD)
        write_bytes(w, 4096);
    if (kind == PS_GO)
        ps_write_go(w, 6, facts, 2);
    if (kind == PS_SETUP)
        ps_write_setup(w, &setup, names);
    if (kind == PS_SAVE || kind == PS_LOAD || kind == PS_DONE) {
        uint64_t places[PS_PLACES];

        for (uint32_t i = 0; i < PS_PLACES; i++)
            places[i] = i * UINT64_C(0x0101010101010101);
        ps_write_save(w, places, "/checkpoints/step");
    }
    if (kind == PS_SAVE || kind == PS_COUNTS) {
        struct ckpt_sizes sizes;

        for (uint32_t i = 0; i < CKPT_GROUPS * PS_SHARDS; i++)
            sizes.rows[i / PS_SHARDS][i % PS_SHARDS] = i * 5;
        ps_write_sizes(w, &sizes, 1);
    }
    if (kind == PS_VOTE) {
        uint32_t *checksums = ps_write_room(w, PS_SHARDS * sizeof(*checksums));
        double *squares;

        for (uint32_t i = 0; i < PS_SHARDS; i++)
            checksums[i] = i * 3;
        squares = ps_write_room(w, PS_SHARDS * sizeof(*squares));
        for (uint32_t i = 0; i < PS_SHARDS; i++)
            squares[i] = i * 0.5;
        memset(ps_write_room(w, PS_CHECK_SHARDS * 8), 9, PS_CHECK_SHARDS * 8);
    }
    assert_false(w->failed);
}

/* Reads n bytes in memory of this size. */
static int read_copy(const uint8_t *data, size_t n, uint8_t **copy, struct ps_message *m,
                     struct err *err)
{
    *copy = malloc(n > 0 ? n : 1);
    assert_non_null(*copy);
    memcpy(*copy, data, n);
    return ps_message_read(*copy, n, widths, TABLES, sections, m, err);
}

/* Writes what was read. */
static void write_again(struct ps_writer *w, const struct ps_message *m)
{
    const char *again[TABLES + 1] = { m->names }; /* SETUP with up to three tables */

    if (m->kind == PS_COPY_IDS) {
        const struct ps_section *x = m->sections;
        struct ps_ids_room out;

        assert_int_equal(ps_write_copy_ids(w, m, x->table, x->part, x->n, widths[x->table], &out),
                         0);
        memcpy(out.rows, x->rows, x->n * sizeof(*x->rows));
        memcpy(out.last_steps, m->last_steps, x->n * sizeof(*x->rows));
        memcpy(out.counts, m->counts, x->n * sizeof(*x->rows));
        memcpy(out.values, x->values, ps_padded(x->n * x->part * widths[x->table]));
        return;
    }
    ps_write_begin(w, m, m->n_sections);
    for (uint32_t i = 0; i < m->n_sections; i++) {
        const struct ps_section *x = &m->sections[i];

        if (x->rows != NULL && x->n > 0)
            memcpy(ps_write_room(w, x->n * sizeof(*x->rows)), x->rows, x->n * sizeof(*x->rows));
        if (x->values != NULL && x->n > 0) {
            size_t bytes = ps_padded(x->n * widths[x->table]);

            memcpy(ps_write_room(w, bytes), x->values, bytes);
        }
        ps_write_section(w, i, x->table, x->part, x->n);
    }
    if (m->shards != NULL)
        ps_write_set(w, m->shards);
    if (m->copied != NULL)
        ps_write_set(w, m->copied);
    if (m->followed != NULL)
        ps_write_set(w, m->followed);
    if (m->kind == PS_SETUP) {
        assert_true(m->n_tables <= TABLES);
        for (uint32_t i = 1; i < m->n_tables; i++)
            again[i] = again[i - 1] + strlen(again[i - 1]) + 1;
        ps_write_setup(w, m, again);
    }
    if (m->kind == PS_SAVE || m->kind == PS_LOAD || m->kind == PS_DONE)
        ps_write_save(w, m->places, m->text);
    if (m->sizes != NULL)
        ps_write_sizes(w, m->sizes, m->number);
    if (m->ledger != NULL) {
        const uint64_t head[] = { m->history[0], m->history[1], m->ledger_bytes };

        memcpy(ps_write_room(w, sizeof(head)), head, sizeof(head));
        memcpy(ps_write_room(w, m->ledger_bytes), m->ledger, m->ledger_bytes);
    }
    if (m->bytes != NULL) {
        memcpy(ps_write_room(w, PS_SHARDS * sizeof(*m->bytes)), m->bytes,
               PS_SHARDS * sizeof(*m->bytes));
    }
    if (m->kind == PS_GO)
        ps_write_go(w, m->n_lanes, m->facts, m->n_facts);
    if (m->kind == PS_VOTE) {
        memcpy(ps_write_room(w, PS_SHARDS * 4), m->checksums, PS_SHARDS * 4);
        memcpy(ps_write_room(w, PS_SHARDS * 8), m->squares, PS_SHARDS * 8);
        memcpy(ps_write_room(w, PS_CHECK_SHARDS * 8), m->states, PS_CHECK_SHARDS * 8);
    }
    assert_false(w->failed);
}

static void every_kind_is_read_as_it_was_written(void **state)
{
    struct ps_writer w = { 0 }, again = { 0 };

    (void)state;
    for (enum ps_kind kind = PS_SETUP; kind < PS_KINDS; kind++) {
        struct ps_message m, expected = sample(kind);
        struct err err = { 0 };
        uint8_t *copy;

        write_sample(&w, kind);
        assert_int_equal(w.n % 8, 0);
        if (read_copy(w.data, w.n, &copy, &m, &err) < 0)
            fail_msg("kind %d: %s", kind, err.text);
        assert_int_equal(m.kind, kind);
        assert_int_equal(m.step, expected.step);
        assert_int_equal(m.first, expected.first);
        assert_int_equal(m.flag, expected.flag);
        assert_int_equal(m.number, expected.number);
        assert_true(m.clip == expected.clip);
        if (kind == PS_SETUP || kind == PS_BEGIN || kind == PS_COMMIT || kind == PS_HELD)
            assert_memory_equal(&m.hyper, &expected.hyper, offsetof(struct optim_hyper, trust));
        assert_int_equal(m.n_sections, n_sections(kind));
        for (uint32_t i = 0; i < m.n_sections; i++) {
            assert_int_equal(sections[i].part, kind == PS_COPY_IDS ? ID_PARTS : 7 + i);
            assert_int_equal(sections[i].rows != NULL, has_rows(kind));
            assert_int_equal(sections[i].values != NULL, has_values(kind));
        }
        if (has_values(kind))
            assert_true(sections[0].values[8] == 8 &&
                        (kind == PS_COPY_IDS || sections[2].values[1] == 21));
        if (kind == PS_COPY_IDS)
            assert_true(sections[0].values[44] == 44 && sections[0].rows[2] == UINT64_MAX &&
                        m.last_steps[2] == 52 && m.counts[1] == UINT32_MAX - 1);
        else if (has_rows(kind))
            assert_true(sections[0].rows[2] == 2 && sections[2].rows[1] == 2001);
        if (m.shards != NULL)
            assert_true(ps_set_has(m.shards, 5) && ps_set_has(m.shards, 1023) &&
                        !ps_set_has(m.shards, 64));
        if (m.copied != NULL)
            assert_true(ps_set_has(m.copied, 64) && !ps_set_has(m.copied, 63));
        if (m.followed != NULL)
            assert_true(ps_set_has(m.followed, 64) && !ps_set_has(m.followed, 5));
        if (kind == PS_SETUP)
            assert_true(strcmp(m.names + 3, "items.weight") == 0 && m.n_lanes == 12 &&
                        m.bound == 3);
        if (kind == PS_HELD || kind == PS_BEGIN)
            assert_true(m.history[1] == 1 && m.ledger[0] == 77 && m.ledger_bytes == 16);
        if (kind == PS_HELD)
            assert_true(m.bytes[0] == 4096 && m.bytes[PS_SHARDS - 1] == 4096);
        if (kind == PS_GO)
            assert_true(m.n_lanes == 6 && m.n_facts == 2 && m.facts[1].n_skipped == 5);
        write_again(&again, &m);
        assert_int_equal(again.n, w.n);
        assert_memory_equal(again.data, w.data, w.n);
        free(copy);
    }
    ps_writer_fini(&w);
    ps_writer_fini(&again);
}

static void copy_head_is_that_of_its_shard(void **state)
{
    struct ps_writer w = { 0 };
    struct ps_message m;
    struct err err = { 0 };
    uint8_t *copy;
    float *values;

    (void)state;
    assert_int_equal(ps_write_copy(&w, 9, 1000, PS_COPY_LAST, 0, 2, 64, 5, 3, &values), 0);
    for (uint32_t i = 0; i < 15; i++)
        values[i] = (float)i;
    assert_int_equal(read_copy(w.data, w.n, &copy, &m, &err), 0);
    assert_int_equal(m.kind, PS_COPY);
    assert_int_equal(m.number, 1000);
    assert_int_equal(m.step, 9);
    assert_int_equal(m.flag, PS_COPY_LAST);
    assert_int_equal(m.first, 64);
    assert_int_equal(sections[0].table, 0);
    assert_int_equal(sections[0].part, 2);
    assert_int_equal(sections[0].n, 5);
    assert_true(sections[0].values[14] == 14 && sections[0].values[15] == 0);
    assert_int_equal(ps_written_rows(&w, 0), 5);
    free(copy);
    ps_writer_fini(&w);
}

static void rows_of_a_dynamic_table_have_the_parts_of_a_state(void **state)
{
    enum { N_SECTIONS = 36, PART = 44 };
    struct ps_writer w = { 0 };
    struct ps_message m;
    struct err err = { 0 };
    uint8_t *copy;

    (void)state;
    for (uint32_t part = 0; part < 8; part++) {
        write_ids(&w);
        memcpy(w.data + PART, &part, sizeof(part));
        assert_int_equal(read_copy(w.data, w.n, &copy, &m, &err), part == ID_PARTS ? 0 : ERR_PEER);
        free(copy);
    }
    write_ids(&w);
    ps_write_flag(&w, PS_COPY_TABLE_END);
    assert_int_equal(read_copy(w.data, w.n, &copy, &m, &err), 0);
    assert_int_equal(m.flag, 1 | PS_COPY_TABLE_END);
    free(copy);
    ps_writer_fini(&w);
}

static void every_truncation_and_extension_is_refused(void **state)
{
    struct ps_writer w = { 0 };

    (void)state;
    for (enum ps_kind kind = PS_SETUP; kind < PS_KINDS; kind++) {
        write_sample(&w, kind);
        for (size_t n = 0; n < w.n + 24; n++) {
            struct ps_message m;
            struct err err = { 0 };
            uint8_t *copy, *longer = calloc(1, w.n + 24);

            if (n == w.n) {
                free(longer);
                continue;
            }
            assert_non_null(longer);
            memcpy(longer, w.data, w.n);
            if (read_copy(longer, n, &copy, &m, &err) != ERR_PEER || err.text[0] == '\0')
                fail_msg("kind %d with %zu of %zu bytes is accepted", kind, n, w.n);
            free(copy);
            free(longer);
        }
    }
    ps_writer_fini(&w);
}

/* A damaged byte is refused, or is a possible value: then the same bytes are written again. */
static void every_damaged_byte_is_refused_or_another_value(void **state)
{
    struct ps_writer w = { 0 }, again = { 0 };
    uint32_t n_refused = 0, n_accepted = 0;

    (void)state;
    for (enum ps_kind kind = PS_SETUP; kind < PS_KINDS; kind++) {
        write_sample(&w, kind);
        for (size_t at = 0; at < w.n; at++)
            for (uint32_t flip = 1; flip < 256;
                 flip += at < 1024 ? (uint32_t)ring_count(7, 1) : 127) {
                struct ps_message m;
                struct err err = { 0 };
                uint8_t *copy;

                w.data[at] ^= (uint8_t)flip;
                if (read_copy(w.data, w.n, &copy, &m, &err) < 0) {
                    assert_int_equal(err.code, ERR_PEER);
                    assert_true(err.text[0] != '\0');
                    n_refused++;
                } else {
                    write_again(&again, &m);
                    assert_int_equal(again.n, w.n);
                    assert_memory_equal(again.data, w.data, w.n);
                    n_accepted++;
                }
                free(copy);
                w.data[at] ^= (uint8_t)flip;
            }
    }
    assert_true(n_refused > 1000 && n_accepted > 1000);
    ps_writer_fini(&w);
    ps_writer_fini(&again);
}

/* ---- limits ---- */

static void expect_refused(const struct ps_writer *w, const char *text)
{
    struct ps_message m;
    struct err err = { 0 };
    uint8_t *copy;

    assert_int_equal(read_copy(w->data, w->n, &copy, &m, &err), ERR_PEER);
    if (strstr(err.text, text) == NULL)
        fail_msg("'%s' does not contain '%s'", err.text, text);
    free(copy);
}

static void set_u32(struct ps_writer *w, size_t at, uint32_t x)
{
    memcpy(w->data + at, &x, sizeof(x));
}

static void set_u64(struct ps_writer *w, size_t at, uint64_t x)
{
    memcpy(w->data + at, &x, sizeof(x));
}

static void kinds_and_sections_beyond_the_limits_are_refused(void **state)
{
    enum { KIND = 4, N_SECTIONS = 36 };
    struct ps_writer w = { 0 };
    struct ps_message m = sample(PS_PULL);
    struct err err = { 0 };
    uint8_t *copy;

    (void)state;
    write_sample(&w, PS_PULL);
    set_u32(&w, KIND, 0);
    expect_refused(&w, "kind 0");
    set_u32(&w, KIND, PS_KINDS);
    expect_refused(&w, "kind 30");
    write_sample(&w, PS_END);
    set_u32(&w, N_SECTIONS, 1);
    expect_refused(&w, "1 sections, expected at most 0");
    ps_write_begin(&w, &m, PS_TABLES_MAX + 1);
    expect_refused(&w, "4097 sections, expected at most 4096");
    set_u32(&w, N_SECTIONS, UINT32_MAX);
    expect_refused(&w, "sections");
    ps_write_begin(&w, &m, PS_TABLES_MAX);
    assert_int_equal(read_copy(w.data, w.n, &copy, &m, &err), 0);
    assert_int_equal(m.n_sections, PS_TABLES_MAX);
    free(copy);
    ps_writer_fini(&w);
}

static void counts_that_overflow_are_refused(void **state)
{
    enum { TABLE = 40, N = 48 };
    static const uint64_t counts[] = { UINT64_MAX,      UINT64_MAX / 2,     UINT64_C(1) << 61,
                                       UINT64_C(1) << 62, UINT64_C(1) << 63, UINT64_C(1) << 41,
                                       (UINT64_C(1) << 41) + 1, 4, 2 };
    static const enum ps_kind kinds[] = { PS_PULL, PS_PUSH, PS_ROWS, PS_COPY };
    struct ps_writer w = { 0 };

    (void)state;
    for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++) {
        for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
            write_sample(&w, kinds[k]);
            set_u64(&w, N, counts[i]);
            expect_refused(&w, "");
        }
        write_sample(&w, kinds[k]);
        set_u32(&w, TABLE, TABLES);
        expect_refused(&w, "table 3, expected 0 to 2");
        set_u32(&w, TABLE, UINT32_MAX);
        expect_refused(&w, "table 4294967295");
    }
    ps_writer_fini(&w);
}

static void sections_without_tables_are_refused(void **state)
{
    struct ps_writer w = { 0 };
    struct ps_message m;
    struct err err = { 0 };

    (void)state;
    write_sample(&w, PS_PUSH);
    assert_int_equal(ps_message_read(w.data, w.n, NULL, 0, sections, &m, &err), ERR_PEER);
    ps_writer_fini(&w);
}

static void setup_out_of_range_is_refused(void **state)
{
    enum { SETUP = 128, OPTIMIZER = SETUP, N = SETUP + 4, LANES = SETUP + 8, BOUND = SETUP + 12,
           AVERAGE = SETUP + 16, FIRST = SETUP + 24 };
    enum { ROWS = FIRST, WIDTH = FIRST + 8, FLAGS = FIRST + 12, RATE = FIRST + 16,
           RULES = FIRST + 56, DYNAMIC = FIRST + 2 * sizeof(struct ps_setup_table) };
    static const struct {
        size_t at;
        uint32_t bytes;
        uint64_t value;
    } cases[] = {
        { OPTIMIZER, 4, OPTIM_TYPES },
        { N, 4, 0 },
        { N, 4, PS_TABLES_MAX + 1 },
        { N, 4, UINT32_MAX },
        { N, 4, TABLES + 1 },
        { N, 4, TABLES - 1 },
        { LANES, 4, 0 },                     /* a bound without lanes */
        { LANES, 4, PS_MAX_LEAVES + 1 },
        { BOUND, 4, 0 },
        { BOUND, 4, PS_BOUND_MAX + 1 },
        { 16, 4, 1 },                        /* staleness beside a bound */
        { AVERAGE, 8, 0x3ff0000000000000 }, /* 1 */
        { AVERAGE, 8, 0xbfe0000000000000 }, /* -0.5 */
        { AVERAGE, 8, 0x7ff8000000000000 }, /* NaN */
        { ROWS, 8, 0 },
        { ROWS, 8, (UINT64_C(1) << 40) + 1 },
        { WIDTH, 4, 0 },
        { WIDTH, 4, PS_WIDTH_MAX + 1 },
        { FLAGS, 4, 4 },
        { FLAGS, 4, PS_TABLE_DENSE }, /* of another width than 256 */
        { RULES, 4, 1 },                     /* a rule of a table with rows */
        { RULES + 8, 8, 5 },
        { DYNAMIC + FLAGS - FIRST, 4, PS_TABLE_DENSE },
        { DYNAMIC + RULES - FIRST, 4, 0 },   /* admit_after */
        { DYNAMIC + RULES - FIRST + 4, 4, 0 }, /* sweep_steps */
        { DYNAMIC + RULES - FIRST + 16, 8, PS_SHARDS - 1 }, /* max_rows */
        { DYNAMIC + 32, 4, TABLE_FROM_FILE },
        { RATE, 8, 0x7ff0000000000000 },     /* infinite */
        { RATE + 8, 8, 0x7ff8000000000000 }, /* weight decay */
        { 40 + 56, 4, 2 },                   /* nesterov */
        { 40 + 60, 4, 2 },                   /* centered */
        { 40 + 76, 4, 1 },                   /* reserved */
        { 40 + 80, 8, 1 },
    };
    struct ps_writer w = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        write_sample(&w, PS_SETUP);
        memcpy(w.data + cases[i].at, &cases[i].value, cases[i].bytes);
        expect_refused(&w, "SETUP");
    }
    ps_writer_fini(&w);
}

static void names_must_end_with_their_section(void **state)
{
    enum { N_NAMES = 128 + 24 + sizeof(struct ps_setup_table) * TABLES, AT = N_NAMES + 8 };
    struct ps_writer w = { 0 };

    (void)state;
    write_sample(&w, PS_SETUP);
    set_u64(&w, N_NAMES, UINT64_MAX);
    expect_refused(&w, "names of 18446744073709551615 bytes");
    set_u64(&w, N_NAMES, 20);
    expect_refused(&w, "names of 20 bytes");
    set_u64(&w, N_NAMES, 8);
    expect_refused(&w, "SETUP");
    write_sample(&w, PS_SETUP);
    memset(w.data + AT, 'x', w.n - AT); /* no end of a name */
    expect_refused(&w, "0 names for 3 tables");
    write_sample(&w, PS_SETUP);
    ps_write_room(&w, 8);
    memset(w.data + w.n - 8, 0, 8);
    set_u64(&w, N_NAMES, w.n - AT);
    expect_refused(&w, "SETUP");
    ps_writer_fini(&w);
}

static void writer_keeps_its_memory(void **state)
{
    struct ps_writer w = { 0 };
    uint8_t *memory;

    (void)state;
    write_sample(&w, PS_VOTE);
    memory = w.data;
    for (enum ps_kind kind = PS_SETUP; kind < PS_KINDS; kind++) {
        write_sample(&w, kind);
        assert_ptr_equal(w.data, memory);
    }
    ps_writer_fini(&w);
    assert_null(w.data);
    ps_writer_fini(&w);
}

/* Writes and borrows bytes in turns, whose values are their positions. */
static void borrowed_bytes_are_parts_between_those_that_were_written(void **state)
{
    static uint8_t borrowed[4][PS_BORROW_BYTES * 2];
    struct ps_writer w = { 0 };

    (void)state;
    for (int round = 0; round < 2; round++) {
        size_t head, at = 0;
        const struct iovec *parts;
        uint32_t n;

        ps_write_begin(&w, &(struct ps_message){ .kind = PS_PUSH }, 0);
        head = (size_t)ps_writer_bytes(&w);
        for (uint32_t i = 0; i < 4; i++) {
            uint64_t *own = ps_write_room(&w, i == 1 ? 0 : 8000);

            if (i != 1)
                memset(own, 0x10 + (int)i, 8000);
            memset(borrowed[i], 0x20 + (int)i, sizeof(borrowed[i]));
            ps_write_borrow(&w, borrowed[i], PS_BORROW_BYTES); /* two halves are one part */
            ps_write_borrow(&w, borrowed[i] + PS_BORROW_BYTES, PS_BORROW_BYTES);
        }
        assert_int_equal(ps_writer_bytes(&w), head + 3 * 8000 + sizeof(borrowed));
        parts = ps_writer_parts(&w, &n);
        assert_non_null(parts);
        assert_int_equal(n, 6); /* the halves, and the first two arrays, follow each other */
        assert_int_equal(parts[0].iov_len, head + 8000);
        for (uint32_t i = 0; i < n; at += parts[i++].iov_len) {
            static const int firsts[] = { 0x10, 0x20, 0x12, 0x22, 0x13, 0x23 };
            const uint8_t *p = parts[i].iov_base;

            assert_int_equal(p[i == 0 ? head : 0], firsts[i]);
            assert_int_equal(p[parts[i].iov_len - 1], i == 1 ? 0x21 : firsts[i]);
            assert_true(i % 2 == 0 || p == borrowed[i == 1 ? 0 : (i + 1) / 2]);
        }
        assert_int_equal(at, ps_writer_bytes(&w));
    }
    ps_writer_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(borrowed_bytes_are_parts_between_those_that_were_written),
        cmocka_unit_test(every_kind_is_read_as_it_was_written),
        cmocka_unit_test(copy_head_is_that_of_its_shard),
        cmocka_unit_test(rows_of_a_dynamic_table_have_the_parts_of_a_state),
        cmocka_unit_test(every_truncation_and_extension_is_refused),
        cmocka_unit_test(every_damaged_byte_is_refused_or_another_value),
        cmocka_unit_test(kinds_and_sections_beyond_the_limits_are_refused),
        cmocka_unit_test(counts_that_overflow_are_refused),
        cmocka_unit_test(sections_without_tables_are_refused),
        cmocka_unit_test(setup_out_of_range_is_refused),
        cmocka_unit_test(names_must_end_with_their_section),
        cmocka_unit_test(writer_keeps_its_memory),
    };

    return cmocka_run_group_tests_name("ps/message", tests, NULL, NULL);
}
