/* test_copies.c - how a server fills the shards that it lacks: whole state of another server, or initial rows,
 * of which the coordinator sends the weights alone. One server in one thread; the test is the coordinator. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "base/err.h"
#include "optim/optim.h"
#include "ps/ledger.h"
#include "ps/message.h"
#include "ps/server.h"
#include "tensor/fill.h"

enum { LEADER, SERVER, WIDTH = 3, ROWS = 130 /* shard 0: 64, shard 1: 64, shard 2: 2 */ };

static const struct ps_setup_table table = { .rows = ROWS, .width = WIDTH, .rate_factor = 1 };
static const uint32_t widths[] = { WIDTH };
/* adagrad: the parts are weights, sum, average */
static const struct optim_hyper hyper = { .learning_rate = 0.1, .epsilon = 1e-8 };

struct sent { /* the last message of the server */
    uint32_t n, n_waits; /* of all; of WAIT */
    uint32_t fails_at;   /* number of a message, from 1, that cannot be sent; 0: none */
    uint64_t words[4096];
    size_t bytes;
};

static int keep(void *arg, uint32_t to, const struct iovec *parts, uint32_t n, struct err *err)
{
    struct sent *s = arg;
    uint32_t kind;

    assert_int_equal(to, LEADER);
    assert_int_equal(n, 1);
    assert_true(parts->iov_len <= sizeof(s->words));
    if (s->n + 1 == s->fails_at)
        return err_set(err, ERR_PEER, "the generation has ended");
    memcpy(s->words, parts->iov_base, parts->iov_len);
    memcpy(&kind, (const uint8_t *)s->words + 4, sizeof(kind));
    s->bytes = parts->iov_len;
    s->n++;
    s->n_waits += kind == PS_WAIT;
    return 0;
}

static struct ps_message last(const struct sent *s)
{
    static struct ps_section sections[PS_TABLES_MAX];
    struct ps_message m;

    assert_int_equal(
        ps_message_read((const uint8_t *)s->words, s->bytes, widths, 1, sections, &m, NULL), 0);
    return m;
}

static int pass(struct ps_server *s, struct ps_writer *w, struct err *err)
{
    assert_false(w->failed);
    return ps_server_handle(s, LEADER, w->data, w->n, err);
}

/* Sends BEGIN: the server holds the shards `wanted`, and lacks those of `lacking`. */
static int begin_with(struct ps_server *s, struct ps_writer *w, const uint64_t *wanted,
                      const uint64_t *lacking, struct err *err)
{
    const struct ps_message begin = { .kind = PS_BEGIN };
    const uint64_t none[PS_SET_WORDS] = { 0 };

    ps_write_begin(w, &begin, 0);
    ps_write_set(w, wanted);
    ps_write_set(w, lacking);
    ps_write_set(w, none);
    write_step(w, 0);
    return pass(s, w, err);
}

/* A server after SETUP. */
static struct ps_server *with_table(const struct ps_setup_table *of, struct sent *sent,
                                    struct ps_writer *w)
{
    const struct ps_server_opts opts = { .n_threads = 1, .send = keep, .arg = sent };
    const struct ps_message setup = { .kind = PS_SETUP,
                                      .hyper = hyper,
                                      .optimizer = OPTIM_ADAGRAD,
                                      .average = 0.5,
                                      .tables = of,
                                      .n_tables = 1 };
    const char *names[] = { "table" };
    struct ps_server *s = NULL;

    assert_int_equal(ps_server_open(&opts, &s, NULL), 0);
    assert_int_equal(ps_server_begin(s, 1, 1, SERVER, LEADER, NULL), 0);
    ps_write_begin(w, &setup, 0);
    ps_write_setup(w, &setup, names);
    assert_int_equal(pass(s, w, NULL), 0);
    return s;
}

/* A server that awaits shards 0 to 2. */
static struct ps_server *awaiting(const struct ps_setup_table *of, struct sent *sent,
                                  struct ps_writer *w)
{
    const uint64_t shards[PS_SET_WORDS] = { 7 };
    struct ps_server *s = with_table(of, sent, w);

    assert_int_equal(begin_with(s, w, shards, shards, NULL), 0);
    assert_int_equal(last(sent).kind, PS_READY);
    return s;
}

static float value(uint32_t shard, uint32_t part, uint64_t i)
{
    return (float)(1 + 1000 * shard + 300 * part) + (float)i;
}

/* Sends rows [first, first + n) of a part of a shard. */
static int copy(struct ps_server *s, struct ps_writer *w, uint32_t shard, bool is_initial,
                uint32_t part, uint64_t first, uint64_t n, struct err *err)
{
    float *values;

    assert_int_equal(ps_write_copy(w, 0, shard, is_initial ? PS_COPY_INITIAL : 0, 0, part, first, n,
                                   WIDTH, &values),
                     0);
    for (uint64_t i = 0; i < n * WIDTH; i++)
        values[i] = value(shard, part, first * WIDTH + i);
    return pass(s, w, err);
}

static struct ps_message pull_all(struct ps_server *s, struct ps_writer *w, struct sent *sent,
                                  uint32_t part)
{
    const struct ps_message pull = { .kind = PS_PULL };
    uint64_t *row;

    ps_write_begin(w, &pull, 1);
    row = ps_write_room(w, ROWS * sizeof(*row));
    for (uint64_t i = 0; i < ROWS; i++)
        row[i] = i;
    ps_write_section(w, 0, 0, part, ROWS);
    assert_int_equal(pass(s, w, NULL), 0);
    assert_int_equal(last(sent).kind, PS_ROWS);
    return last(sent);
}

/* Compares all rows of a part; shard 1 was copied, the others have initial rows. */
static void check_part(struct ps_server *s, struct ps_writer *w, struct sent *sent, uint32_t part)
{
    struct ps_message rows = pull_all(s, w, sent, part);

    for (uint64_t i = 0; i < ROWS * WIDTH; i++) {
        uint32_t shard = (uint32_t)(i / WIDTH / 64);
        float expected = shard == 1 ? value(1, part, i - 64 * WIDTH)
                                    : value(shard, 0, i - (uint64_t)shard * 64 * WIDTH);

        if (shard != 1 && part == 1)
            expected = 0;
        assert_true(rows.sections[0].values[i] == expected);
    }
}

static void initial_shards_get_weights_alone_and_copied_shards_all_parts(void **state)
{
    struct sent *sent = calloc(1, sizeof(*sent));
    struct ps_writer w = { 0 };
    struct ps_server *s = awaiting(&table, sent, &w);

    (void)state;
    assert_int_equal(copy(s, &w, 0, true, 0, 0, 40, NULL), 0);
    assert_int_equal(copy(s, &w, 0, true, 0, 40, 24, NULL), 0);
    for (uint32_t part = 0; part < 3; part++)
        assert_int_equal(copy(s, &w, 1, false, part, 0, 64, NULL), 0);
    assert_int_equal(sent->n, 1);
    assert_int_equal(last(sent).flag, 0);
    assert_int_equal(copy(s, &w, 2, true, 0, 0, 2, NULL), 0);
    assert_int_equal(sent->n, 2);
    assert_int_equal(last(sent).kind, PS_READY);
    assert_int_equal(last(sent).flag, 1);
    for (uint32_t part = 0; part < 3; part++)
        check_part(s, &w, sent, part);
    ps_server_close(s);
    ps_writer_fini(&w);
    free(sent);
}

static struct ps_setup_table generated_table(const struct table_fill *fill, uint64_t rows,
                                             uint32_t width)
{
    return (struct ps_setup_table){ .rows = rows,
                                    .width = width,
                                    .rate_factor = 1,
                                    .fill = fill->kind,
                                    .stream = fill->stream,
                                    .seed = fill->seed,
                                    .scale = fill->scale };
}

/* At step 0 a server generates such a table without a message. */
static void generated_rows_are_made_by_the_server_and_awaited_from_nobody(void **state)
{
    const struct table_fill fill = table_fill_of(TABLE_NORMAL, 2, 5, "table");
    const struct ps_setup_table generated = generated_table(&fill, ROWS, WIDTH);
    struct sent *sent = calloc(1, sizeof(*sent));
    struct ps_writer w = { 0 };
    struct ps_server *s = awaiting(&generated, sent, &w);
    float expected[ROWS * WIDTH];

    (void)state;
    assert_int_equal(last(sent).flag, 1); /* READY: nothing is awaited */
    assert_int_equal(sent->n, 1);
    table_fill_rows(&fill, WIDTH, 0, ROWS, expected);
    for (uint32_t part = 0; part < 3; part++) {
        struct ps_message rows = pull_all(s, &w, sent, part);

        for (uint64_t i = 0; i < ROWS * WIDTH; i++)
            assert_true(rows.sections[0].values[i] == (part == 1 ? 0 : expected[i]));
    }
    ps_server_close(s);
    ps_writer_fini(&w);
    free(sent);
}

/* WAIT after each 32 MiB; a shard counts as 1 MiB more. */
static void many_rows_are_generated_the_server_reports_that_it_works(void **state)
{
    static const struct {
        uint64_t rows;
        uint32_t width, n_waits;
    } cases[] = {
        { 64 * PS_SHARDS, 1, 32 },  /* all shards, 768 bytes in each */
        { 3 * 64, 32768, 1 },       /* 24 MiB of rows, slots and averages in each of three shards */
        { 3 * 64, 2 * 32768, 3 },   /* 48 MiB */
        { 31 * 64, 1, 0 },          /* the others have no rows, and are not held */
    };
    const struct table_fill fill = table_fill_of(TABLE_NORMAL, 2, 5, "table");

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct ps_setup_table of = generated_table(&fill, cases[i].rows, cases[i].width);
        struct sent *sent = calloc(1, sizeof(*sent));
        struct ps_writer w = { 0 };
        struct ps_server *s = with_table(&of, sent, &w);
        uint64_t shards[PS_SET_WORDS] = { 0 };

        for (uint32_t k = 0; k < cases[i].rows / 64; k++)
            ps_set_add(shards, k);
        assert_int_equal(begin_with(s, &w, shards, shards, NULL), 0);
        assert_int_equal(sent->n_waits, cases[i].n_waits);
        assert_int_equal(sent->n, cases[i].n_waits + 1);
        assert_int_equal(last(sent).kind, PS_READY);
        ps_server_close(s);
        ps_writer_fini(&w);
        free(sent);
    }
}

/* The generation ends meanwhile. The next one generates the rest, and all rows are those of an undisturbed one. */
static void report_cannot_be_sent_the_server_stops_and_generates_the_rest_later(void **state)
{
    enum { ALL = 64 * PS_SHARDS };
    const struct table_fill fill = table_fill_of(TABLE_NORMAL, 2, 5, "table");
    const struct ps_setup_table of = generated_table(&fill, ALL, WIDTH);
    struct sent *sent = calloc(1, sizeof(*sent));
    struct ps_writer w = { 0 };
    struct ps_server *s = with_table(&of, sent, &w);
    struct ps_server_stats stats;
    uint64_t shards[PS_SET_WORDS], lacking[PS_SET_WORDS];
    float expected[ROWS * WIDTH];
    struct ps_message rows;
    struct err err;

    (void)state;
    memset(shards, 0xff, sizeof(shards));
    memset(lacking, 0xff, sizeof(lacking));
    sent->fails_at = 3;
    assert_int_equal(begin_with(s, &w, shards, shards, &err), ERR_PEER);
    assert_string_equal(err.text, "the generation has ended");
    ps_server_stats(s, &stats);
    assert_int_equal(stats.n_shards, 3 * 32);
    sent->fails_at = 0;
    ps_server_end(s);
    assert_int_equal(ps_server_begin(s, 1, 1, SERVER, LEADER, NULL), 0);
    for (uint32_t i = 0; i < stats.n_shards; i++)
        ps_set_remove(lacking, i);
    assert_int_equal(begin_with(s, &w, shards, lacking, NULL), 0);
    assert_int_equal(sent->n_waits, 2 + 29);
    assert_int_equal(last(sent).kind, PS_READY);
    assert_int_equal(last(sent).flag, 1);
    table_fill_rows(&fill, WIDTH, 0, ROWS, expected);
    rows = pull_all(s, &w, sent, 0);
    assert_memory_equal(rows.sections[0].values, expected, sizeof(expected));
    ps_server_close(s);
    ps_writer_fini(&w);
    free(sent);
}

static void copy_that_is_not_the_next_one_is_refused(void **state)
{
    static const struct {
        bool is_initial, goes_on_initial; /* of a shard; of its second message */
        uint32_t part;
        uint64_t first, n;
    } wrong[] = {
        { true, true, 1, 0, 64 },    /* other parts of initial rows */
        { true, true, 0, 41, 23 },   /* a gap */
        { true, true, 0, 40, 25 },   /* more rows than the shard has */
        { true, false, 0, 40, 24 },  /* initial first, then not */
        { false, true, 0, 40, 24 },  /* the reverse */
        { false, false, 1, 0, 64 },  /* other rows of the next part */
        { false, false, 0, 40, 24 }, /* other rows before the next part */
    };
    struct sent *sent = calloc(1, sizeof(*sent));
    struct ps_writer w = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        struct ps_server *s = awaiting(&table, sent, &w);
        struct err err = { 0 };

        assert_int_equal(copy(s, &w, 0, wrong[i].is_initial, 0, 0, 40, NULL), 0);
        assert_int_equal(copy(s, &w, 0, wrong[i].goes_on_initial, wrong[i].part, wrong[i].first,
                              wrong[i].n, &err),
                         ERR_PEER);
        ps_server_close(s);
    }
    ps_writer_fini(&w);
    free(sent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(initial_shards_get_weights_alone_and_copied_shards_all_parts),
        cmocka_unit_test(generated_rows_are_made_by_the_server_and_awaited_from_nobody),
        cmocka_unit_test(many_rows_are_generated_the_server_reports_that_it_works),
        cmocka_unit_test(report_cannot_be_sent_the_server_stops_and_generates_the_rest_later),
        cmocka_unit_test(copy_that_is_not_the_next_one_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
