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
    uint32_t n;
    uint64_t words[4096];
    size_t bytes;
};

static int keep(void *arg, uint32_t to, const struct iovec *parts, uint32_t n, struct err *err)
{
    struct sent *s = arg;

    (void)err;
    assert_int_equal(to, LEADER);
    assert_int_equal(n, 1);
    assert_true(parts->iov_len <= sizeof(s->words));
    memcpy(s->words, parts->iov_base, parts->iov_len);
    s->bytes = parts->iov_len;
    s->n++;
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

/* A server that awaits shards 0 to 2. */
static struct ps_server *awaiting(const struct ps_setup_table *of, struct sent *sent,
                                  struct ps_writer *w)
{
    const struct ps_server_opts opts = { .n_threads = 1, .send = keep, .arg = sent };
    const struct ps_message setup = { .kind = PS_SETUP,
                                      .hyper = hyper,
                                      .optimizer = OPTIM_ADAGRAD,
                                      .average = 0.5,
                                      .tables = of,
                                      .n_tables = 1 },
                            begin = { .kind = PS_BEGIN };
    const char *names[] = { "table" };
    const uint64_t shards[PS_SET_WORDS] = { 7 }, none[PS_SET_WORDS] = { 0 };
    struct ps_server *s = NULL;

    assert_int_equal(ps_server_open(&opts, &s, NULL), 0);
    assert_int_equal(ps_server_begin(s, 1, 1, SERVER, LEADER, NULL), 0);
    ps_write_begin(w, &setup, 0);
    ps_write_setup(w, &setup, names);
    assert_int_equal(pass(s, w, NULL), 0);
    ps_write_begin(w, &begin, 0);
    ps_write_set(w, shards);
    ps_write_set(w, shards);
    ps_write_set(w, none);
    write_step(w, 0);
    assert_int_equal(pass(s, w, NULL), 0);
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

/* At step 0 a server generates such a table without a message. */
static void generated_rows_are_made_by_the_server_and_awaited_from_nobody(void **state)
{
    const struct table_fill fill = table_fill_of(TABLE_NORMAL, 2, 5, "table");
    struct ps_setup_table generated = table;
    struct sent *sent = calloc(1, sizeof(*sent));
    struct ps_writer w = { 0 };
    struct ps_server *s = NULL;
    float expected[ROWS * WIDTH];

    (void)state;
    generated.fill = fill.kind;
    generated.stream = fill.stream;
    generated.seed = fill.seed;
    generated.scale = fill.scale;
    s = awaiting(&generated, sent, &w);
    assert_int_equal(last(sent).flag, 1); /* READY: nothing is awaited */
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
        cmocka_unit_test(copy_that_is_not_the_next_one_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
