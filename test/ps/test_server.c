/* test_server.c - the states of one server: each row of the table in server.h, and every message that
 * a state refuses. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "optim/optim.h"
#include "ps/ledger.h"
#include "ps/message.h"
#include "ps/server.h"

/* Points: the ranks 0 and 1, of which 1 leads, the server, and another server. */
enum { RANKS = 2, LEADER = 1, SELF = 2, OTHER = 3, TABLES = 2, SENT = 16 };

/* Table 0 has rows in shards 0 and 1, table 1 in shard 389. */
static const struct ps_setup_table setup_tables[TABLES] = {
    { .rows = 70, .width = 3, .rate_factor = 1 },
    { .rows = 2, .width = 2, .rate_factor = 1 },
};
static const char *const names[TABLES] = { "items", "users" };
static const uint32_t widths[TABLES] = { 3, 2 };
static const struct optim_hyper sgd = { .learning_rate = 0.5, .grad_scale = 1, .step = 1 };

struct sent {
    uint32_t to;
    struct ps_message m;
    uint64_t *data; /* owned */
    struct ps_section sections[TABLES];
};

struct bench {
    struct ps_server *server;
    struct ps_writer w;
    struct sent sent[SENT];
    uint32_t n_sent;
    bool send_fails, reserve_fails, wants_save;
    uint32_t staleness, n_lanes, bound; /* of SETUP */
    uint64_t reserved; /* bytes of the last BEGIN */
    struct err err;
};

static int record(void *arg, uint32_t to, const struct iovec *parts, uint32_t n, struct err *err)
{
    static struct ps_section sections[PS_TABLES_MAX];
    struct bench *b = arg;
    struct sent *s = &b->sent[b->n_sent];

    if (b->send_fails)
        return err_set(err, ERR_TIMEOUT, "no room");
    assert_true(b->n_sent++ < SENT && n == 1);
    s->to = to;
    s->data = malloc(parts[0].iov_len);
    assert_non_null(s->data);
    memcpy(s->data, parts[0].iov_base, parts[0].iov_len);
    assert_int_equal(ps_message_read((uint8_t *)s->data, parts[0].iov_len, widths, TABLES, sections,
                                     &s->m, NULL),
                     0);
    assert_true(s->m.n_sections <= TABLES);
    memcpy(s->sections, sections, sizeof(s->sections));
    return 0;
}

static int reserve(void *arg, uint64_t bytes, uint64_t memory, struct err *err)
{
    struct bench *b = arg;

    assert_true(memory >= bytes);
    b->reserved = bytes;
    return b->reserve_fails ? err_set(err, ERR_NOMEM, "too many bytes") : 0;
}

static bool takes_save(void *arg)
{
    struct bench *b = arg;
    bool wants = b->wants_save;

    b->wants_save = false;
    return wants;
}

static void forget_sent(struct bench *b)
{
    while (b->n_sent > 0)
        free(b->sent[--b->n_sent].data);
}

static void begin_generation(struct bench *b)
{
    assert_int_equal(ps_server_begin(b->server, RANKS, 2, SELF, LEADER, NULL), 0);
}

static void bench_open(struct bench *b)
{
    struct ps_server_opts o = {
        .n_threads = 1, .send = record, .reserve = reserve, .wants_save = takes_save, .arg = b
    };

    memset(b, 0, sizeof(*b));
    assert_int_equal(ps_server_open(&o, &b->server, NULL), 0);
    begin_generation(b);
}

static void bench_close(struct bench *b)
{
    forget_sent(b);
    ps_server_close(b->server);
    ps_writer_fini(&b->w);
}

/* Gives the written message to the server, in memory of its exact size. */
static int give(struct bench *b, uint32_t from)
{
    uint8_t *data = malloc(b->w.n);
    int rc;

    assert_non_null(data);
    memcpy(data, b->w.data, b->w.n);
    rc = ps_server_handle(b->server, from, data, b->w.n, &b->err);
    free(data);
    return rc;
}

static int give_head(struct bench *b, uint32_t from, struct ps_message m)
{
    ps_write_begin(&b->w, &m, 0);
    return give(b, from);
}

static int give_setup(struct bench *b, uint32_t from, enum optim_type type, uint32_t n_tables)
{
    struct ps_message m = { .kind = PS_SETUP,
                            .flag = b->staleness,
                            .hyper = sgd,
                            .optimizer = type,
                            .tables = setup_tables,
                            .n_tables = n_tables,
                            .n_lanes = b->n_lanes,
                            .bound = b->bound };

    ps_write_begin(&b->w, &m, 0);
    ps_write_setup(&b->w, &m, names);
    return give(b, from);
}

static int give_query(struct bench *b, uint32_t from)
{
    return give_head(b, from, (struct ps_message){ .kind = PS_QUERY });
}

/* shards: a list that ends with PS_SHARDS */
static void write_list(struct bench *b, const uint32_t *shards)
{
    uint64_t set[PS_SET_WORDS] = { 0 };

    for (; *shards < PS_SHARDS; shards++)
        ps_set_add(set, *shards);
    ps_write_set(&b->w, set);
}

#define LIST(...)                                                                                  \
    (const uint32_t[])                                                                             \
    {                                                                                              \
        __VA_ARGS__, PS_SHARDS                                                                     \
    }
static const uint32_t empty[] = { PS_SHARDS };

/* n_followers: FOLLOWs that name this server */
static int give_begin_all(struct bench *b, uint32_t from, uint64_t step, enum ps_pending flag,
                          const uint32_t *shards, const uint32_t *copied, const uint32_t *followed,
                          uint32_t n_followers)
{
    struct ps_message m = {
        .kind = PS_BEGIN, .step = step, .flag = flag, .number = n_followers, .hyper = sgd
    };

    ps_write_begin(&b->w, &m, 0);
    write_list(b, shards);
    write_list(b, copied);
    write_list(b, followed);
    write_step(&b->w, step);
    return give(b, from);
}

static int give_begin(struct bench *b, uint32_t from, uint64_t step, enum ps_pending flag,
                      const uint32_t *shards, const uint32_t *copied)
{
    return give_begin_all(b, from, step, flag, shards, copied, empty, 0);
}

static int give_follow(struct bench *b, uint32_t from, uint32_t source, const uint32_t *shards)
{
    struct ps_message m = { .kind = PS_FOLLOW, .number = source };

    ps_write_begin(&b->w, &m, 0);
    write_list(b, shards);
    return give(b, from);
}

/* Table 0, part 0; the first shard of the list, from local row `first` on. */
static int give_fetch(struct bench *b, uint32_t from, uint64_t step, uint64_t first,
                      const uint32_t *shards)
{
    struct ps_message m = {
        .kind = PS_FETCH, .step = step, .number = *shards % PS_SHARDS, .first = first
    };

    ps_write_begin(&b->w, &m, 1);
    ps_write_section(&b->w, 0, 0, 0, 0);
    write_list(b, shards);
    return give(b, from);
}

/* Copies rows [first, first + n) of a shard, each float with the value of its local row. */
static int give_copy_of(struct bench *b, uint32_t from, uint64_t step, unsigned flags,
                        uint32_t shard, uint32_t table, uint32_t part, uint64_t first, uint64_t n)
{
    float *values;

    assert_int_equal(
        ps_write_copy(&b->w, step, shard, flags, table, part, first, n, widths[table], &values), 0);
    for (uint64_t i = 0; i < n * widths[table]; i++)
        values[i] = (float)(first + i / widths[table]);
    return give(b, from);
}

static int give_copy(struct bench *b, uint32_t from, uint32_t shard, uint32_t table, uint32_t part,
                     uint64_t first, uint64_t n)
{
    return give_copy_of(b, from, ps_server_version(b->server), 0, shard, table, part, first, n);
}

/* PULL or PUSH of one row of a table; a PUSH has the gradient 1. */
static int give_row(struct bench *b, uint32_t from, struct ps_message m, uint32_t table,
                    uint64_t row)
{
    size_t n = widths[table];
    float *values;

    ps_write_begin(&b->w, &m, 1);
    *(uint64_t *)ps_write_room(&b->w, sizeof(uint64_t)) = row;
    if (m.kind == PS_PUSH) {
        values = ps_write_room(&b->w, ps_padded(n));
        for (size_t i = 0; i < ps_padded(n) / sizeof(float); i++)
            values[i] = i < n;
    }
    ps_write_section(&b->w, 0, table, 0, 1);
    return give(b, from);
}

static struct ps_message push_of(uint64_t step, uint32_t rank)
{
    return (struct ps_message){ .kind = PS_PUSH, .step = step, .number = rank, .first = 1 };
}

static int give_push(struct bench *b, uint32_t rank, uint64_t step, uint64_t row)
{
    return give_row(b, rank, push_of(step, rank), 0, row);
}

static int give_pull(struct bench *b, uint32_t rank, uint64_t step, uint64_t row)
{
    return give_row(b, rank, (struct ps_message){ .kind = PS_PULL, .step = step }, 0, row);
}

static int give_commit(struct bench *b, uint32_t rank, uint64_t step, uint32_t flag)
{
    return give_head(b, rank, (struct ps_message){ .kind = PS_COMMIT, .step = step, .flag = flag,
                                                   .hyper = sgd });
}

static int give_end(struct bench *b, uint32_t rank, uint32_t flag)
{
    return give_head(b, rank, (struct ps_message){ .kind = PS_END, .flag = flag });
}

/* The one message that was sent since the last call. */
static struct sent *expect_sent(struct bench *b, uint32_t to, enum ps_kind kind, uint64_t step)
{
    assert_int_equal(b->n_sent, 1);
    assert_int_equal(b->sent[0].to, to);
    assert_int_equal(b->sent[0].m.kind, kind);
    assert_int_equal(b->sent[0].m.step, step);
    b->n_sent = 0;
    return &b->sent[0]; /* its memory is used until free_sent() */
}

static void free_sent(struct sent *s)
{
    free(s->data);
}

static void expect_kind(struct bench *b, uint32_t to, enum ps_kind kind, uint64_t step,
                        uint32_t flag)
{
    struct sent *s = expect_sent(b, to, kind, step);

    assert_int_equal(s->m.flag, flag);
    free_sent(s);
}

static void expect_refused(struct bench *b, int rc, const char *text)
{
    assert_int_equal(rc, ERR_PEER);
    if (strstr(b->err.text, text) == NULL)
        fail_msg("'%s' does not contain '%s'", b->err.text, text);
    assert_int_equal(b->n_sent, 0);
}

static void expect_row(struct bench *b, uint32_t to, uint64_t step, float value)
{
    struct sent *s = expect_sent(b, to, PS_ROWS, step);

    assert_int_equal(s->m.n_sections, 1);
    assert_int_equal(s->sections[0].n, 1);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(s->sections[0].values[i] == value);
    free_sent(s);
}

/* ---- to the states ---- */

static void to_idle(struct bench *b)
{
    bench_open(b);
    assert_int_equal(give_setup(b, LEADER, OPTIM_SGD, TABLES), 0);
}

static void to_loading(struct bench *b)
{
    to_idle(b);
    assert_int_equal(give_begin(b, LEADER, 4, PS_DROP, LIST(0, 1, 5), LIST(0, 1, 5)), 0);
    expect_kind(b, LEADER, PS_READY, 4, 0);
}

static void to_holding(struct bench *b)
{
    to_loading(b);
    assert_int_equal(give_copy(b, LEADER, 0, 0, 0, 0, 64), 0);
    assert_int_equal(b->n_sent, 0);
    assert_int_equal(give_copy(b, LEADER, 1, 0, 0, 0, 6), 0);
    expect_kind(b, LEADER, PS_READY, 4, 1);
}

static void to_pending(struct bench *b)
{
    to_holding(b);
    assert_int_equal(give_push(b, 0, 5, 1), 0);
    assert_int_equal(b->n_sent, 0);
    assert_int_equal(give_push(b, 1, 5, 1), 0);
    expect_kind(b, LEADER, PS_VOTE, 5, 1);
}

/* ---- the table of server.h ---- */

static void setup_query_and_begin_lead_from_idle_to_holding(void **state)
{
    struct bench b;
    struct sent *s;

    (void)state;
    to_idle(&b);
    assert_int_equal(give_query(&b, LEADER), 0);
    s = expect_sent(&b, LEADER, PS_HELD, 0);
    for (uint32_t i = 0; i < PS_SET_WORDS; i++)
        assert_int_equal(s->m.shards[i], 0);
    free_sent(s);
    /* shard 5 has no rows: nothing is copied */
    assert_int_equal(give_begin(&b, LEADER, 9, PS_DROP, LIST(5), LIST(5)), 0);
    expect_kind(&b, LEADER, PS_READY, 9, 1);
    assert_int_equal(ps_server_version(b.server), 9);
    bench_close(&b);
}

static void copies_in_pieces_fill_the_shards(void **state)
{
    struct bench b;

    (void)state;
    to_loading(&b);
    assert_int_equal(give_copy(&b, LEADER, 0, 0, 0, 0, 10), 0);
    assert_int_equal(give_copy(&b, LEADER, 1, 0, 0, 0, 6), 0);
    assert_int_equal(give_copy(&b, LEADER, 0, 0, 0, 10, 54), 0);
    expect_kind(&b, LEADER, PS_READY, 4, 1);
    assert_int_equal(give_pull(&b, 0, 4, 63), 0);
    expect_row(&b, 0, 4, 63);
    assert_int_equal(give_pull(&b, 0, 4, 69), 0);
    expect_row(&b, 0, 4, 5);
    bench_close(&b);
}

static void copies_out_of_order_are_refused(void **state)
{
    static const struct {
        uint32_t shard, table, part;
        uint64_t first, n;
    } cases[] = {
        { 0, 0, 0, 1, 63 },  /* not from its first row */
        { 0, 0, 0, 0, 65 },  /* more rows than the shard has */
        { 0, 0, 0, 0, 0 },   /* no row */
        { 0, 0, 1, 0, 64 },  /* sgd has one part */
        { 0, 1, 0, 0, 1 },   /* another table */
        { 5, 0, 0, 0, 1 },   /* has no rows */
        { 2, 0, 0, 0, 1 },   /* not requested */
        { 1024, 0, 0, 0, 1 },
        { UINT32_MAX, 0, 0, 0, 1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct bench b;
        int rc;

        to_loading(&b);
        rc = give_copy(&b, LEADER, cases[i].shard, cases[i].table, cases[i].part, cases[i].first,
                       cases[i].n);
        expect_refused(&b, rc, i == 1 ? "65 rows" : "is not the next one");
        ps_server_end(b.server);
        bench_close(&b);
    }
}

static void copy_after_the_last_row_or_from_a_rank_is_refused(void **state)
{
    struct bench b;

    (void)state;
    to_loading(&b);
    expect_refused(&b, give_copy(&b, 0, 0, 0, 0, 0, 64), "COPY");
    expect_refused(&b, give_copy(&b, OTHER, 0, 0, 0, 0, 64), "COPY"); /* no FETCH was sent */
    assert_int_equal(give_copy(&b, LEADER, 0, 0, 0, 0, 64), 0);
    expect_refused(&b, give_copy(&b, LEADER, 0, 0, 0, 0, 64), "not the next one");
    bench_close(&b);
    bench_open(&b); /* knows no tables */
    expect_refused(&b, give_copy(&b, LEADER, 0, 0, 0, 0, 64), "table 0");
    bench_close(&b);
}

static void step_is_summed_when_all_have_pushed_and_applied_when_all_have_committed(void **state)
{
    struct bench b;

    (void)state;
    to_pending(&b);
    assert_int_equal(give_commit(&b, 1, 5, 0), 0);
    assert_int_equal(ps_server_version(b.server), 4);
    assert_int_equal(give_pull(&b, 0, 4, 1), 0); /* still the version before */
    expect_row(&b, 0, 4, 1);
    assert_int_equal(give_pull(&b, 1, 5, 1), 0); /* waits */
    assert_int_equal(b.n_sent, 0);
    assert_int_equal(give_commit(&b, 0, 5, 0), 0);
    assert_int_equal(ps_server_version(b.server), 5);
    expect_row(&b, 1, 5, 1 - 0.5f * 2);
    bench_close(&b);
}

static void skipped_step_changes_only_the_version(void **state)
{
    struct bench b;

    (void)state;
    to_pending(&b);
    assert_int_equal(give_commit(&b, 1, 5, 1), 0);
    assert_int_equal(give_commit(&b, 0, 5, 1), 0);
    assert_int_equal(give_pull(&b, 0, 5, 1), 0);
    expect_row(&b, 0, 5, 1);
    bench_close(&b);
}

static void rank_without_rows_pushes_before_others_committed(void **state)
{
    struct bench b;

    (void)state;
    to_pending(&b);
    assert_int_equal(give_commit(&b, 0, 5, 0), 0);
    assert_int_equal(give_push(&b, 0, 6, 2), 0); /* waits */
    expect_refused(&b, give_push(&b, 0, 6, 2), "PUSH of step 6");
    expect_refused(&b, give_pull(&b, 0, 5, 2), "PULL of step 5");
    assert_int_equal(give_commit(&b, 1, 5, 0), 0);
    assert_int_equal(ps_server_version(b.server), 5);
    expect_refused(&b, give_push(&b, 0, 6, 2), "1 of 2 gradients");
    assert_int_equal(give_push(&b, 1, 6, 2), 0);
    expect_kind(&b, LEADER, PS_VOTE, 6, 1);
    bench_close(&b);
}

/* ---- copies between servers ---- */

static void expect_fetch(struct bench *b, uint64_t step, uint64_t first)
{
    struct sent *s = expect_sent(b, OTHER, PS_FETCH, step);

    assert_int_equal(s->m.number, 0);
    assert_int_equal(s->m.first, first);
    assert_int_equal(s->m.n_sections, 1);
    assert_int_equal(s->sections[0].table, 0);
    assert_true(ps_set_has(s->m.shards, 0) && !ps_set_has(s->m.shards, 1));
    free_sent(s);
}

/* Shard 0 is copied from OTHER before READY, or (background) during the next steps. */
static void to_following(struct bench *b, bool background)
{
    to_idle(b);
    assert_int_equal(give_begin_all(b, LEADER, 4, PS_DROP, LIST(0, 5), background ? empty : LIST(0),
                                    background ? LIST(0) : empty, 0),
                     0);
    expect_kind(b, LEADER, PS_READY, 4, background);
    assert_int_equal(give_follow(b, LEADER, OTHER, LIST(0)), 0);
    expect_fetch(b, 4, 0);
}

/* A FETCH without shards: the source is not asked again. */
static void expect_last_fetch(struct bench *b)
{
    struct sent *s = &b->sent[b->n_sent - 1];

    assert_true(b->n_sent > 0);
    assert_int_equal(s->to, OTHER);
    assert_int_equal(s->m.kind, PS_FETCH);
    assert_int_equal(ps_set_next(s->m.shards, 0), PS_SHARDS);
    free(s->data);
    b->n_sent--;
}

static void give_step(struct bench *b, uint64_t step, uint64_t row)
{
    assert_int_equal(give_push(b, 0, step, row), 0);
    assert_int_equal(give_push(b, 1, step, row), 0);
    expect_kind(b, LEADER, PS_VOTE, step, 1);
    assert_int_equal(give_commit(b, 0, step, 0), 0);
    assert_int_equal(give_commit(b, 1, step, 0), 0);
}

static bool has_shard(struct bench *b, uint32_t shard)
{
    struct sent *s;
    bool has;

    assert_int_equal(give_query(b, 0), 0);
    s = expect_sent(b, 0, PS_HELD, ps_server_version(b->server));
    has = ps_set_has(s->m.shards, shard);
    free_sent(s);
    return has;
}

static void ready_waits_for_copies_from_another_server(void **state)
{
    struct bench b;

    (void)state;
    to_following(&b, false);
    assert_int_equal(give_copy_of(&b, OTHER, 4, 0, 0, 0, 0, 0, 40), 0);
    assert_int_equal(b.n_sent, 0);
    assert_int_equal(give_copy_of(&b, OTHER, 4, PS_COPY_LAST, 0, 0, 0, 40, 24), 0);
    expect_last_fetch(&b);
    expect_kind(&b, LEADER, PS_READY, 4, 1);
    assert_int_equal(give_pull(&b, 0, 4, 63), 0);
    expect_row(&b, 0, 4, 63);
    bench_close(&b);
}

static void next_fetch_follows_the_last_answer(void **state)
{
    struct bench b;

    (void)state;
    to_following(&b, true);
    assert_false(has_shard(&b, 0));
    assert_true(has_shard(&b, 5));
    expect_refused(&b, give_pull(&b, 0, 4, 1), "still copied");
    assert_int_equal(give_copy_of(&b, OTHER, 4, PS_COPY_LAST, 0, 0, 0, 0, 10), 0);
    expect_fetch(&b, 4, 10);
    assert_false(has_shard(&b, 0));
    assert_int_equal(give_copy_of(&b, OTHER, 4, PS_COPY_LAST, 0, 0, 0, 10, 54), 0);
    expect_last_fetch(&b);
    assert_true(has_shard(&b, 0));
    assert_int_equal(give_pull(&b, 0, 4, 63), 0);
    expect_row(&b, 0, 4, 63);
    bench_close(&b);
}

/* The source is one step ahead: its rows contain the step that the receiver has not applied. */
static void rows_of_the_next_version_wait_for_it(void **state)
{
    struct bench b;

    (void)state;
    to_following(&b, true);
    assert_int_equal(give_push(&b, 0, 5, 1), 0);
    assert_int_equal(give_push(&b, 1, 5, 1), 0);
    expect_kind(&b, LEADER, PS_VOTE, 5, 1);
    assert_int_equal(give_copy_of(&b, OTHER, 5, 0, 0, 0, 0, 0, 10), 0);
    assert_int_equal(give_copy_of(&b, OTHER, 5, PS_COPY_LAST, 0, 0, 0, 10, 54), 0);
    assert_int_equal(b.n_sent, 0);
    assert_false(has_shard(&b, 0));
    assert_int_equal(give_commit(&b, 0, 5, 0), 0);
    assert_int_equal(give_commit(&b, 1, 5, 0), 0);
    expect_last_fetch(&b);
    assert_true(has_shard(&b, 0));
    assert_int_equal(give_pull(&b, 0, 5, 1), 0);
    expect_row(&b, 0, 5, 1); /* the copied value, not updated again */
    bench_close(&b);
}

/* The step is applied when the answer of the version before has arrived, to the copied rows as well. */
static void step_waits_for_the_answer_of_its_version(void **state)
{
    struct bench b;

    (void)state;
    to_following(&b, true);
    give_step(&b, 5, 1);
    assert_int_equal(ps_server_version(b.server), 4);
    assert_int_equal(give_pull(&b, 0, 5, 1), 0); /* waits */
    assert_int_equal(give_copy_of(&b, OTHER, 4, 0, 0, 0, 0, 0, 10), 0);
    assert_int_equal(ps_server_version(b.server), 4);
    assert_int_equal(give_copy_of(&b, OTHER, 4, PS_COPY_LAST, 0, 0, 0, 10, 54), 0);
    assert_int_equal(ps_server_version(b.server), 5);
    assert_int_equal(b.n_sent, 2);
    free(b.sent[0].data); /* FETCH without shards */
    b.sent[0] = b.sent[1];
    b.n_sent = 1;
    expect_row(&b, 0, 5, 1 - 0.5f * 2);
    bench_close(&b);
}

static void shard_that_is_not_complete_takes_part_in_the_steps(void **state)
{
    struct bench b;

    (void)state;
    to_following(&b, true);
    assert_int_equal(give_copy_of(&b, OTHER, 4, PS_COPY_LAST, 0, 0, 0, 0, 10), 0);
    expect_fetch(&b, 4, 10);
    give_step(&b, 5, 20); /* of a row that has not arrived */
    assert_int_equal(ps_server_version(b.server), 4);
    assert_int_equal(give_copy_of(&b, OTHER, 4, PS_COPY_LAST, 0, 0, 0, 10, 30), 0);
    expect_fetch(&b, 5, 40);
    assert_int_equal(give_copy_of(&b, OTHER, 5, PS_COPY_LAST, 0, 0, 0, 40, 24), 0);
    expect_last_fetch(&b);
    assert_int_equal(give_pull(&b, 0, 5, 20), 0);
    expect_row(&b, 0, 5, 20 - 0.5f * 2);
    assert_int_equal(give_pull(&b, 0, 5, 50), 0);
    expect_row(&b, 0, 5, 50);
    bench_close(&b);
}

static void copies_stop_at_the_first_end(void **state)
{
    struct bench b;

    (void)state;
    to_following(&b, true);
    assert_int_equal(give_end(&b, 0, 0), 0);
    assert_int_equal(give_end(&b, 1, 0), 0);
    assert_int_equal(ps_server_ended(b.server), PS_RUNNING); /* an answer is on the way */
    assert_int_equal(give_copy_of(&b, OTHER, 4, PS_COPY_LAST, 0, 0, 0, 0, 10), 0);
    expect_last_fetch(&b);
    assert_int_equal(ps_server_ended(b.server), PS_PAUSED);
    ps_server_end(b.server);
    begin_generation(&b);
    assert_int_equal(give_query(&b, LEADER), 0);
    assert_false(ps_set_has(b.sent[0].m.shards, 0)); /* it is not complete */
    bench_close(&b);
}

static void answers_that_were_not_requested_are_refused(void **state)
{
    struct bench b;

    (void)state;
    to_following(&b, true);
    expect_refused(&b, give_copy_of(&b, 0, 4, 0, 0, 0, 0, 0, 10), "COPY");
    expect_refused(&b, give_copy_of(&b, OTHER, 3, 0, 0, 0, 0, 0, 10), "COPY of step 3");
    expect_refused(&b, give_copy_of(&b, OTHER, 6, 0, 0, 0, 0, 0, 10), "COPY of step 6");
    expect_refused(&b, give_copy_of(&b, LEADER, 4, PS_COPY_LAST, 0, 0, 0, 0, 10), "COPY");
    expect_refused(&b, give_copy_of(&b, LEADER, 5, 0, 0, 0, 0, 0, 10), "COPY of step 5");
    expect_refused(&b, give_copy_of(&b, OTHER, 4, 0, 0, 0, 0, 1, 10), "is not the next one");
    bench_close(&b);
    to_holding(&b);
    expect_refused(&b, give_copy_of(&b, OTHER, 4, 0, 0, 0, 0, 0, 10), "COPY");
    bench_close(&b);
}

static void follow_is_accepted_from_the_coordinator_for_another_server(void **state)
{
    struct bench b;

    (void)state;
    to_loading(&b);
    expect_refused(&b, give_follow(&b, 0, OTHER, LIST(0)), "FOLLOW");
    expect_refused(&b, give_follow(&b, LEADER, SELF, LIST(0)), "FOLLOW");
    expect_refused(&b, give_follow(&b, LEADER, 0, LIST(0)), "FOLLOW");
    expect_refused(&b, give_follow(&b, LEADER, OTHER + 1, LIST(0)), "FOLLOW");
    assert_int_equal(give_follow(&b, LEADER, OTHER, LIST(5)), 0); /* it has no rows */
    expect_last_fetch(&b);
    assert_int_equal(give_follow(&b, LEADER, OTHER, LIST(0)), 0);
    expect_fetch(&b, 4, 0);
    bench_close(&b);
    to_idle(&b);
    expect_refused(&b, give_follow(&b, LEADER, OTHER, LIST(0)), "FOLLOW");
    bench_close(&b);
}

/* ---- files ---- */

static int give_save(struct bench *b, uint32_t from, uint64_t step)
{
    const struct ps_message m = { .kind = PS_SAVE, .step = step };
    static const uint64_t places[PS_PLACES];

    ps_write_begin(&b->w, &m, 0);
    write_list(b, LIST(0));
    ps_write_save(&b->w, places, ".step-5");
    return give(b, from);
}

/* Returns the state of the work. */
static uint32_t poll_save(struct bench *b, uint64_t step)
{
    struct sent *s;
    uint32_t flag;

    assert_int_equal(give_head(b, LEADER, (struct ps_message){ .kind = PS_POLL, .step = step }), 0);
    s = expect_sent(b, LEADER, PS_DONE, step);
    flag = s->m.flag;
    free_sent(s);
    return flag;
}

/* The coordinator is ahead of another rank, or the server waits for copied rows. */
static void save_waits_for_its_version(void **state)
{
    struct bench b;
    uint32_t flag;

    (void)state;
    to_pending(&b);
    expect_refused(&b, give_save(&b, LEADER, 5), "SAVE of step 5"); /* not committed */
    assert_int_equal(give_commit(&b, LEADER, 5, 0), 0);
    assert_int_equal(give_save(&b, LEADER, 5), 0);
    expect_refused(&b, give_save(&b, LEADER, 5), "SAVE of step 5"); /* one waits already */
    assert_int_equal(poll_save(&b, 5), PS_DONE_SOME);
    assert_int_equal(ps_server_version(b.server), 4);
    assert_int_equal(give_commit(&b, 0, 5, 0), 0);
    do
        flag = poll_save(&b, 5);
    while (flag == PS_DONE_SOME);
    assert_int_equal(flag, PS_DONE_NONE); /* this server has no directory */
    bench_close(&b);
}

static void save_that_waits_is_stopped(void **state)
{
    struct ps_message stop = { .kind = PS_POLL, .step = 5, .flag = 1 };
    struct bench b;

    (void)state;
    to_pending(&b);
    assert_int_equal(give_commit(&b, LEADER, 5, 0), 0);
    assert_int_equal(give_save(&b, LEADER, 5), 0);
    assert_int_equal(give_head(&b, LEADER, stop), 0);
    assert_int_equal(give_commit(&b, 0, 5, 0), 0);
    expect_refused(&b, give_head(&b, LEADER, stop), "POLL");
    assert_int_equal(give_save(&b, LEADER, 5), 0);
    bench_close(&b);
}

static void shard_that_is_not_complete_is_not_saved(void **state)
{
    struct bench b;

    (void)state;
    to_following(&b, true);
    expect_refused(&b, give_save(&b, LEADER, 4), "SAVE of step 4");
    bench_close(&b);
}

/* ---- the source ---- */

static void to_source(struct bench *b, uint32_t n_followers)
{
    to_holding(b);
    ps_server_end(b->server);
    begin_generation(b);
    assert_int_equal(
        give_begin_all(b, LEADER, 4, PS_DROP, LIST(0, 1, 5), empty, empty, n_followers), 0);
    expect_kind(b, LEADER, PS_READY, 4, 1);
}

static void expect_copy(struct bench *b, uint64_t step, uint32_t shard, uint64_t n, float last)
{
    struct sent *s = expect_sent(b, OTHER, PS_COPY, step);

    assert_int_equal(s->m.number, shard);
    assert_int_equal(s->m.flag, PS_COPY_LAST);
    assert_int_equal(s->sections[0].n, n);
    assert_true(s->sections[0].values[3 * n - 1] == last);
    free_sent(s);
}

static void source_sends_the_rows_of_its_version(void **state)
{
    struct bench b;

    (void)state;
    to_source(&b, 1);
    assert_int_equal(give_fetch(&b, OTHER, 4, 2, LIST(1)), 0);
    expect_copy(&b, 4, 1, 4, 5);
    assert_int_equal(give_fetch(&b, OTHER, 5, 2, LIST(1)), 0); /* the receiver is ahead: waits */
    assert_int_equal(b.n_sent, 0);
    expect_refused(&b, give_fetch(&b, OTHER, 5, 2, LIST(1)), "FETCH"); /* one waits already */
    assert_int_equal(give_push(&b, 0, 5, 69), 0);
    assert_int_equal(give_push(&b, 1, 5, 69), 0);
    expect_kind(&b, LEADER, PS_VOTE, 5, 1);
    assert_int_equal(give_commit(&b, 0, 5, 0), 0);
    assert_int_equal(give_commit(&b, 1, 5, 0), 0);
    expect_copy(&b, 5, 1, 4, 5 - 0.5f * 2);
    assert_int_equal(give_fetch(&b, OTHER, 4, 2, LIST(1)), 0); /* the receiver is behind */
    expect_copy(&b, 5, 1, 4, 5 - 0.5f * 2);
    expect_refused(&b, give_fetch(&b, OTHER, 3, 2, LIST(1)), "FETCH of step 3");
    expect_refused(&b, give_fetch(&b, OTHER, 7, 2, LIST(1)), "FETCH of step 7");
    bench_close(&b);
}

static void source_ends_when_no_server_copies_from_it(void **state)
{
    struct bench b;

    (void)state;
    to_source(&b, 2);
    assert_int_equal(give_end(&b, 0, 1), 0);
    assert_int_equal(give_end(&b, 1, 1), 0);
    assert_int_equal(give_fetch(&b, OTHER, 4, 0, empty), 0);
    assert_int_equal(ps_server_ended(b.server), PS_RUNNING);
    assert_int_equal(give_fetch(&b, OTHER, 4, 0, LIST(1)), 0);
    expect_copy(&b, 4, 1, 6, 5);
    assert_int_equal(give_fetch(&b, OTHER, 4, 0, empty), 0);
    assert_int_equal(ps_server_ended(b.server), PS_COMPLETE);
    expect_refused(&b, give_fetch(&b, OTHER, 4, 0, empty), "FETCH"); /* one more than BEGIN has said */
    bench_close(&b);
}

static void wrong_fetches_are_refused(void **state)
{
    struct bench b;

    (void)state;
    to_source(&b, 1);
    expect_refused(&b, give_fetch(&b, 0, 4, 0, LIST(1)), "FETCH");
    expect_refused(&b, give_fetch(&b, SELF, 4, 0, LIST(1)), "FETCH");
    expect_refused(&b, give_fetch(&b, OTHER, 4, 0, LIST(2)), "shard 2 is not held");
    expect_refused(&b, give_fetch(&b, OTHER, 4, 0, LIST(5)), "FETCH"); /* no rows */
    expect_refused(&b, give_fetch(&b, OTHER, 4, 6, LIST(1)), "FETCH"); /* after the last row */
    bench_close(&b);
    to_following(&b, true);
    expect_refused(&b, give_fetch(&b, OTHER, 4, 0, LIST(0)), "shard 0 is not held");
    bench_close(&b);
    to_idle(&b);
    expect_refused(&b, give_fetch(&b, OTHER, 0, 0, LIST(0)), "FETCH");
    bench_close(&b);
}

static void shard_that_moved_away_can_be_sent_until_the_first_sum(void **state)
{
    struct ps_server_stats stats;
    struct bench b;

    (void)state;
    to_holding(&b);
    ps_server_end(b.server);
    begin_generation(&b);
    assert_int_equal(give_begin_all(&b, LEADER, 4, PS_DROP, LIST(0), empty, empty, 1), 0);
    expect_kind(&b, LEADER, PS_READY, 4, 1);
    assert_int_equal(give_fetch(&b, OTHER, 4, 0, LIST(1)), 0);
    expect_copy(&b, 4, 1, 6, 5);
    assert_int_equal(give_push(&b, 0, 5, 1), 0);
    assert_int_equal(give_push(&b, 1, 5, 1), 0);
    expect_kind(&b, LEADER, PS_VOTE, 5, 1);
    expect_refused(&b, give_fetch(&b, OTHER, 4, 0, LIST(1)), "shard 1 is not held");
    ps_server_stats(b.server, &stats);
    assert_int_equal(stats.n_shards, 1);
    assert_int_equal(stats.bytes, 64 * 3 * sizeof(float));
    bench_close(&b);
}

static void begin_reports_the_bytes_of_all_shards_before_they_are_held(void **state)
{
    enum { ROW0 = 3 * sizeof(float), ROW1 = 2 * sizeof(float) };
    struct ps_server_stats stats;
    struct bench b;

    (void)state;
    to_idle(&b);
    assert_int_equal(give_begin(&b, LEADER, 4, PS_DROP, LIST(0, 389), LIST(0, 389)), 0);
    assert_int_equal(b.reserved, 64 * ROW0 + 2 * ROW1);
    bench_close(&b);

    to_holding(&b); /* shards 0, 1, 5 */
    assert_int_equal(b.reserved, 70 * ROW0);
    ps_server_end(b.server);
    begin_generation(&b);
    assert_int_equal(give_begin(&b, LEADER, 4, PS_DROP, LIST(0, 389), LIST(389)), 0);
    assert_int_equal(b.reserved, 70 * ROW0 + 2 * ROW1); /* shard 1 is kept for SEND */
    bench_close(&b);

    bench_open(&b); /* adagrad: a slot for each weight */
    assert_int_equal(give_setup(&b, LEADER, OPTIM_ADAGRAD, TABLES), 0);
    b.reserve_fails = true;
    assert_int_equal(give_begin(&b, LEADER, 4, PS_DROP, LIST(0, 1), LIST(0, 1)), ERR_NOMEM);
    assert_string_equal(b.err.text, "too many bytes");
    assert_int_equal(b.reserved, 70 * ROW0 * 2);
    ps_server_stats(b.server, &stats);
    assert_int_equal(stats.bytes, 0);
    assert_int_equal(b.n_sent, 0);
    ps_server_end(b.server);
    begin_generation(&b); /* the next generation gives it fewer shards */
    b.reserve_fails = false;
    assert_int_equal(give_begin(&b, LEADER, 4, PS_DROP, LIST(1), LIST(1)), 0);
    assert_int_equal(b.reserved, 6 * ROW0 * 2);
    bench_close(&b);
}

static void end_of_every_rank_ends_the_generation(void **state)
{
    struct bench b;

    (void)state;
    for (uint32_t is_complete = 0; is_complete < 2; is_complete++) {
        to_holding(&b);
        assert_int_equal(ps_server_ended(b.server), PS_RUNNING);
        expect_refused(&b, give_end(&b, 0, 2), "END");
        assert_int_equal(give_end(&b, 0, is_complete), 0);
        assert_int_equal(ps_server_ended(b.server), PS_RUNNING);
        expect_refused(&b, give_end(&b, 0, 0), "END");
        assert_int_equal(give_end(&b, 1, is_complete), 0);
        assert_int_equal(ps_server_ended(b.server), is_complete == 1 ? PS_COMPLETE : PS_PAUSED);
        bench_close(&b);
    }
}

/* ---- a generation fails, and the next one settles ---- */

static void next_generation(struct bench *b, bool is_pending)
{
    struct sent *s;

    ps_server_end(b->server);
    begin_generation(b);
    assert_int_equal(give_setup(b, LEADER, OPTIM_SGD, TABLES), 0); /* the same: no effect */
    assert_int_equal(give_query(b, LEADER), 0);
    s = expect_sent(b, LEADER, PS_HELD, 4);
    assert_int_equal(s->m.flag, is_pending);
    assert_true(ps_set_has(s->m.shards, 0) && ps_set_has(s->m.shards, 1) &&
                ps_set_has(s->m.shards, 5));
    free_sent(s);
}

static void pending_gradient_is_dropped_applied_or_skipped_by_the_next_generation(void **state)
{
    static const float expected[] = { 1, 0, 1 };

    (void)state;
    for (int flag = PS_DROP; flag <= PS_SKIP; flag++)
        for (uint32_t n_commits = 0; n_commits < 2; n_commits++) {
            uint64_t step = flag == PS_DROP ? 4 : 5;
            struct bench b;

            to_pending(&b);
            for (uint32_t i = 0; i < n_commits; i++)
                assert_int_equal(give_commit(&b, i, 5, 0), 0);
            next_generation(&b, true);
            assert_int_equal(give_begin(&b, LEADER, step, flag, LIST(0, 1, 5), empty), 0);
            expect_kind(&b, LEADER, PS_READY, step, 1);
            assert_int_equal(give_pull(&b, 0, step, 1), 0);
            expect_row(&b, 0, step, expected[flag]);
            assert_int_equal(give_push(&b, 0, step + 1, 1), 0);
            assert_int_equal(give_push(&b, 1, step + 1, 1), 0);
            expect_kind(&b, LEADER, PS_VOTE, step + 1, 1);
            bench_close(&b);
        }
}

static void pushes_that_are_not_summed_are_forgotten(void **state)
{
    struct bench b;

    (void)state;
    to_holding(&b);
    assert_int_equal(give_push(&b, 0, 5, 1), 0);
    next_generation(&b, false);
    assert_int_equal(give_begin(&b, LEADER, 4, PS_DROP, LIST(0, 1, 5), empty), 0);
    expect_kind(&b, LEADER, PS_READY, 4, 1);
    assert_int_equal(give_push(&b, 1, 5, 1), 0);
    assert_int_equal(b.n_sent, 0);
    bench_close(&b);
}

static void incomplete_shards_are_dropped_when_the_generation_fails(void **state)
{
    struct bench b;
    struct sent *s;

    (void)state;
    to_loading(&b);
    assert_int_equal(give_copy(&b, LEADER, 0, 0, 0, 0, 64), 0);
    assert_int_equal(give_copy(&b, LEADER, 1, 0, 0, 0, 5), 0);
    ps_server_end(b.server);
    begin_generation(&b);
    assert_int_equal(give_query(&b, LEADER), 0);
    s = expect_sent(&b, LEADER, PS_HELD, 4);
    assert_true(ps_set_has(s->m.shards, 0) && !ps_set_has(s->m.shards, 1) &&
                ps_set_has(s->m.shards, 5));
    free_sent(s);
    bench_close(&b);
}

static void begin_that_would_keep_rows_of_another_step_is_refused(void **state)
{
    struct bench b;
    struct sent *s;

    (void)state;
    to_holding(&b);
    next_generation(&b, false);
    expect_refused(&b, give_begin(&b, LEADER, 7, PS_DROP, LIST(0, 1), LIST(0)), "BEGIN of step 7");
    assert_int_equal(ps_server_version(b.server), 4);
    assert_int_equal(give_begin(&b, LEADER, 7, PS_DROP, LIST(0), LIST(0)), 0);
    expect_kind(&b, LEADER, PS_READY, 7, 0);
    ps_server_end(b.server);
    begin_generation(&b);
    assert_int_equal(give_query(&b, LEADER), 0);
    s = expect_sent(&b, LEADER, PS_HELD, 7);
    for (uint32_t i = 0; i < PS_SET_WORDS; i++) /* nothing of step 4 is left */
        assert_int_equal(s->m.shards[i], 0);
    free_sent(s);
    bench_close(&b);
}

static void other_tables_drop_the_state(void **state)
{
    struct bench b;
    struct sent *s;

    (void)state;
    to_pending(&b);
    ps_server_end(b.server);
    begin_generation(&b);
    assert_int_equal(give_setup(&b, LEADER, OPTIM_SGD, 1), 0);
    assert_int_equal(give_query(&b, LEADER), 0);
    s = expect_sent(&b, LEADER, PS_HELD, 0);
    assert_int_equal(s->m.flag, 0);
    for (uint32_t i = 0; i < PS_SET_WORDS; i++)
        assert_int_equal(s->m.shards[i], 0);
    free_sent(s);
    bench_close(&b);
}

static void optimizer_with_norms_is_refused_and_leaves_no_tables(void **state)
{
    struct bench b;

    (void)state;
    to_idle(&b);
    assert_int_equal(give_setup(&b, LEADER, OPTIM_LAMB, TABLES), ERR_UNSUPPORTED);
    expect_refused(&b, give_begin(&b, LEADER, 0, PS_DROP, LIST(0), LIST(0)), "BEGIN");
    assert_int_equal(give_setup(&b, LEADER, OPTIM_SGD, TABLES), 0);
    assert_int_equal(give_begin(&b, LEADER, 0, PS_DROP, LIST(0), LIST(0)), 0);
    expect_kind(&b, LEADER, PS_READY, 0, 0);
    bench_close(&b);
}

/* ---- messages that a state refuses ---- */

typedef void to_state(struct bench *b);

static void refuse_all(to_state *enter, const char *expected)
{
    static const char kinds[] = "sqbpcuPC";

    for (const char *kind = kinds; *kind != '\0'; kind++) {
        struct bench b;
        int rc = 0;

        if (strchr(expected, *kind) == NULL)
            continue;
        enter(&b);
        switch (*kind) {
        case 's': rc = give_setup(&b, LEADER, OPTIM_SGD, 1); break;
        case 'q': rc = give_query(&b, LEADER); break;
        case 'b': rc = give_begin(&b, LEADER, 4, PS_DROP, LIST(0), LIST(0)); break;
        case 'p': rc = give_pull(&b, 0, 4, 1); break;
        case 'c': rc = give_commit(&b, 0, 5, 0); break;
        case 'u': rc = give_push(&b, 0, 5, 1); break;
        case 'P': rc = give_pull(&b, 0, 5, 1); break; /* of the next version */
        case 'C': rc = give_copy(&b, LEADER, 0, 0, 0, 0, 64); break;
        }
        if (rc != ERR_PEER)
            fail_msg("message '%c' is accepted: %d", *kind, rc);
        assert_int_equal(b.n_sent, 0);
        assert_int_equal(ps_server_version(b.server), enter == to_idle ? 0 : 4);
        ps_server_end(b.server);
        bench_close(&b);
    }
}

static void messages_of_other_states_are_refused(void **state)
{
    (void)state;
    refuse_all(to_idle, "pcuPC");
    refuse_all(to_loading, "sqbpcuP");
    refuse_all(to_holding, "sbcPC"); /* QUERY of a rank is allowed */
    refuse_all(to_pending, "sbuPC");
}

static void messages_from_other_points_are_refused(void **state)
{
    struct bench b;

    (void)state;
    to_idle(&b);
    expect_refused(&b, give_setup(&b, 0, OPTIM_SGD, 1), "SETUP");
    expect_refused(&b, give_query(&b, 0), "QUERY");
    expect_refused(&b, give_begin(&b, 0, 4, PS_DROP, LIST(0), LIST(0)), "BEGIN");
    expect_refused(&b, give_begin(&b, LEADER, 4, PS_SKIP + 1, LIST(0), LIST(0)), "BEGIN");
    bench_close(&b);
    to_holding(&b);
    expect_refused(&b, give_push(&b, OTHER, 5, 1), "sends only FETCH, COPY and COPY_IDS");
    expect_refused(&b, give_pull(&b, OTHER, 4, 1), "sends only FETCH, COPY and COPY_IDS");
    expect_refused(&b, give_commit(&b, OTHER, 5, 0), "sends only FETCH, COPY and COPY_IDS");
    expect_refused(&b, give_end(&b, OTHER, 0), "sends only FETCH, COPY and COPY_IDS");
    expect_refused(&b, give_query(&b, OTHER), "sends only FETCH, COPY and COPY_IDS");
    bench_close(&b);
}

static void kinds_that_only_servers_send_are_refused(void **state)
{
    static const enum ps_kind kinds[] = { PS_READY, PS_HELD };
    struct bench b;

    (void)state;
    to_holding(&b);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        struct ps_message m = { .kind = kinds[i] };

        ps_write_begin(&b.w, &m, 0);
        if (kinds[i] == PS_HELD) {
            write_list(&b, empty);
            write_step(&b.w, 0);
            write_bytes(&b.w, 0);
        }
        expect_refused(&b, give(&b, 0), "does not expect");
    }
    bench_close(&b);
}

static void wrong_pushes_are_refused(void **state)
{
    struct ps_message m = push_of(5, 0);
    struct bench b;

    (void)state;
    to_holding(&b);
    expect_refused(&b, give_push(&b, 0, 4, 1), "PUSH of step 4");
    expect_refused(&b, give_push(&b, 0, 6, 1), "PUSH of step 6");
    m.first = UINT64_C(1) << 32 | 1; /* lanes */
    expect_refused(&b, give_row(&b, 0, m, 0, 1), "PUSH of step 5");
    assert_int_equal(give_push(&b, 0, 5, 1), 0);
    expect_refused(&b, give_push(&b, 0, 5, 1), "PUSH of step 5");
    expect_refused(&b, give_row(&b, 1, push_of(5, 0), 0, 1), "subtree"); /* lanes of rank 0 */
    bench_close(&b);
    to_holding(&b);
    assert_int_equal(give_push(&b, 0, 5, 1), 0);
    expect_refused(&b, give_push(&b, 1, 5, 70), "row 70 of 70");
    bench_close(&b);
    to_holding(&b);
    assert_int_equal(give_push(&b, 0, 5, 1), 0);
    expect_refused(&b, give_row(&b, 1, push_of(5, 1), 1, 1), "shard 389");
    bench_close(&b);
}

static void sections_out_of_the_order_of_tables_are_refused(void **state)
{
    static const uint32_t orders[][2] = { { 1, 0 }, { 0, 0 } };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct ps_message m = push_of(5, 1);
        struct bench b;

        to_holding(&b);
        assert_int_equal(give_push(&b, 0, 5, 1), 0);
        ps_write_begin(&b.w, &m, 2);
        ps_write_section(&b.w, 0, orders[i][0], 0, 0);
        ps_write_section(&b.w, 1, orders[i][1], 0, 0);
        expect_refused(&b, give(&b, 1), "order of the tables");
        bench_close(&b);
    }
}

static void wrong_commits_are_refused(void **state)
{
    struct optim_hyper other = sgd;
    struct bench b;

    (void)state;
    other.grad_scale *= 2; /* a rank that computed another norm */
    to_pending(&b);
    expect_refused(&b, give_commit(&b, 0, 4, 0), "COMMIT of step 4");
    expect_refused(&b, give_commit(&b, 0, 6, 0), "COMMIT of step 6");
    expect_refused(&b, give_commit(&b, 0, 5, 2), "COMMIT of step 5");
    assert_int_equal(give_commit(&b, 0, 5, 0), 0);
    expect_refused(&b, give_commit(&b, 0, 5, 0), "COMMIT of step 5");
    expect_refused(&b, give_commit(&b, 1, 5, 1), "COMMIT of step 5"); /* the other one applies it */
    expect_refused(&b, give_head(&b, 1, (struct ps_message){ .kind = PS_COMMIT, .step = 5, .hyper = other }),
                   "factor of the gradient");
    assert_int_equal(ps_server_version(b.server), 4);
    bench_close(&b);
}

/* A server with all rows after step 4, the same after the steps before. */
static void to_holding_with(struct bench *b, uint32_t staleness)
{
    bench_open(b);
    b->staleness = staleness;
    assert_int_equal(give_setup(b, LEADER, OPTIM_SGD, TABLES), 0);
    assert_int_equal(give_begin(b, LEADER, 4, PS_DROP, LIST(0, 1), LIST(0, 1)), 0);
    expect_kind(b, LEADER, PS_READY, 4, 0);
    for (uint32_t shard = 0; shard < 2; shard++)
        for (uint32_t part = 0; part <= staleness; part++) /* the weights, then the older ones */
            assert_int_equal(give_copy(b, LEADER, shard, 0, part, 0, shard == 0 ? 64 : 6), 0);
    expect_kind(b, LEADER, PS_READY, 4, 1);
}

static void vote_asks_once_for_a_checkpoint_that_the_server_wants(void **state)
{
    struct bench b;

    (void)state;
    to_holding(&b);
    b.wants_save = true;
    for (uint64_t step = 5; step < 8; step++) {
        for (uint32_t rank = 0; rank < RANKS; rank++)
            assert_int_equal(give_push(&b, rank, step, 1), 0);
        expect_kind(&b, LEADER, PS_VOTE, step,
                    step == 5 ? PS_VOTE_FINITE | PS_VOTE_SAVE : PS_VOTE_FINITE);
        for (uint32_t rank = 0; rank < RANKS; rank++)
            assert_int_equal(give_commit(&b, rank, step, 0), 0);
    }
    bench_close(&b);
}

static int give_lane_pull(struct bench *b, uint32_t rank, uint64_t step, uint64_t row)
{
    return give_row(b, rank, (struct ps_message){ .kind = PS_PULL, .step = step, .flag = 1 }, 0, row);
}

/* Both ranks subtract 0.5 from a row. */
static void make_step(struct bench *b, uint64_t step, uint64_t row)
{
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(give_push(b, rank, step, row), 0);
    free_sent(expect_sent(b, LEADER, PS_VOTE, step));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(give_commit(b, rank, step, 0), 0);
}

static void lanes_read_rows_of_the_version_that_the_staleness_names(void **state)
{
    struct bench b;

    (void)state;
    to_holding_with(&b, 2);
    assert_int_equal(give_lane_pull(&b, 0, 2, 3), 0);
    expect_row(&b, 0, 2, 3);
    for (uint64_t step = 0; step < 8; step++)
        if (step != 2)
            expect_refused(&b, give_lane_pull(&b, 0, step, 3), "PULL of step");
    for (uint64_t step = 0; step < 8; step++) /* not for a lane */
        if (step != 4)
            expect_refused(&b, give_pull(&b, 0, step, 3), "PULL of step");
    expect_refused(&b, give_row(&b, 0, (struct ps_message){ .kind = PS_PULL, .step = 2, .flag = 3 }, 0, 3),
                   "PULL of step 2");
    make_step(&b, 5, 3);
    make_step(&b, 6, 3);
    assert_int_equal(give_lane_pull(&b, 1, 4, 3), 0);
    expect_row(&b, 1, 4, 3);
    make_step(&b, 7, 3);
    assert_int_equal(give_lane_pull(&b, 1, 5, 3), 0);
    expect_row(&b, 1, 5, 2);
    assert_int_equal(give_pull(&b, 1, 7, 3), 0);
    expect_row(&b, 1, 7, 0);
    bench_close(&b);
}

/* A rank that has committed a step does not wait for the other one. */
static void lanes_read_older_rows_before_other_ranks_commit(void **state)
{
    struct bench b;

    (void)state;
    to_holding_with(&b, 1);
    make_step(&b, 5, 3);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(give_push(&b, rank, 6, 3), 0);
    free_sent(expect_sent(&b, LEADER, PS_VOTE, 6));
    assert_int_equal(give_commit(&b, 0, 6, 0), 0);
    assert_int_equal(ps_server_version(b.server), 5);
    assert_int_equal(give_lane_pull(&b, 0, 5, 3), 0);
    expect_row(&b, 0, 5, 2);
    expect_refused(&b, give_lane_pull(&b, 0, 4, 3), "PULL of step 4");
    assert_int_equal(give_lane_pull(&b, 1, 4, 3), 0); /* of a lane that asks late */
    expect_row(&b, 1, 4, 3);
    assert_int_equal(give_commit(&b, 1, 6, 0), 0);
    assert_int_equal(give_lane_pull(&b, 0, 5, 3), 0);
    expect_row(&b, 0, 5, 2);
    bench_close(&b);
}

static void rows_that_lanes_read_are_counted_by_their_age(void **state)
{
    struct ps_server_stats stats;
    struct bench b;

    (void)state;
    to_holding_with(&b, 2);
    assert_int_equal(give_lane_pull(&b, 0, 2, 3), 0);
    assert_int_equal(give_lane_pull(&b, 1, 2, 5), 0);
    assert_int_equal(give_pull(&b, 0, 4, 3), 0); /* an evaluation or a checkpoint */
    forget_sent(&b);
    ps_server_stats(b.server, &stats);
    for (uint32_t age = 0; age <= PS_STALENESS_MAX; age++)
        assert_int_equal(stats.rows_stale[age], age == 2 ? 2 : 0);
    assert_int_equal(stats.rows_read, 3);
    bench_close(&b);
}

static void staleness_beyond_the_limit_is_refused(void **state)
{
    struct bench b;

    (void)state;
    bench_open(&b);
    b.staleness = PS_STALENESS_MAX + 1;
    expect_refused(&b, give_setup(&b, LEADER, OPTIM_SGD, TABLES), "staleness 5");
    bench_close(&b);
}

static void wrong_pulls_are_refused(void **state)
{
    struct bench b;

    (void)state;
    to_holding(&b);
    expect_refused(&b, give_pull(&b, 0, 3, 1), "PULL of step 3");
    expect_refused(&b, give_pull(&b, 0, 4, 70), "row 70 of 70");
    expect_refused(&b, give_pull(&b, 0, 4, UINT64_MAX), "of 70 rows");
    expect_refused(
        &b, give_row(&b, 0, (struct ps_message){ .kind = PS_PULL, .step = 4 }, 1, 0), "shard 389");
    bench_close(&b);
    to_pending(&b);
    assert_int_equal(give_commit(&b, 0, 5, 0), 0);
    assert_int_equal(give_pull(&b, 0, 5, 1), 0);
    expect_refused(&b, give_pull(&b, 0, 5, 1), "PULL of step 5"); /* one waits already */
    bench_close(&b);
}

static void failed_send_is_returned(void **state)
{
    struct bench b;

    (void)state;
    to_holding(&b);
    b.send_fails = true;
    assert_int_equal(give_pull(&b, 0, 4, 1), ERR_TIMEOUT);
    assert_int_equal(give_query(&b, 0), ERR_TIMEOUT);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(setup_query_and_begin_lead_from_idle_to_holding),
        cmocka_unit_test(copies_in_pieces_fill_the_shards),
        cmocka_unit_test(copies_out_of_order_are_refused),
        cmocka_unit_test(copy_after_the_last_row_or_from_a_rank_is_refused),
        cmocka_unit_test(step_is_summed_when_all_have_pushed_and_applied_when_all_have_committed),
        cmocka_unit_test(vote_asks_once_for_a_checkpoint_that_the_server_wants),
        cmocka_unit_test(skipped_step_changes_only_the_version),
        cmocka_unit_test(rank_without_rows_pushes_before_others_committed),
        cmocka_unit_test(ready_waits_for_copies_from_another_server),
        cmocka_unit_test(next_fetch_follows_the_last_answer),
        cmocka_unit_test(rows_of_the_next_version_wait_for_it),
        cmocka_unit_test(step_waits_for_the_answer_of_its_version),
        cmocka_unit_test(shard_that_is_not_complete_takes_part_in_the_steps),
        cmocka_unit_test(copies_stop_at_the_first_end),
        cmocka_unit_test(answers_that_were_not_requested_are_refused),
        cmocka_unit_test(follow_is_accepted_from_the_coordinator_for_another_server),
        cmocka_unit_test(save_waits_for_its_version),
        cmocka_unit_test(save_that_waits_is_stopped),
        cmocka_unit_test(shard_that_is_not_complete_is_not_saved),
        cmocka_unit_test(source_sends_the_rows_of_its_version),
        cmocka_unit_test(source_ends_when_no_server_copies_from_it),
        cmocka_unit_test(wrong_fetches_are_refused),
        cmocka_unit_test(shard_that_moved_away_can_be_sent_until_the_first_sum),
        cmocka_unit_test(begin_reports_the_bytes_of_all_shards_before_they_are_held),
        cmocka_unit_test(end_of_every_rank_ends_the_generation),
        cmocka_unit_test(pending_gradient_is_dropped_applied_or_skipped_by_the_next_generation),
        cmocka_unit_test(pushes_that_are_not_summed_are_forgotten),
        cmocka_unit_test(incomplete_shards_are_dropped_when_the_generation_fails),
        cmocka_unit_test(begin_that_would_keep_rows_of_another_step_is_refused),
        cmocka_unit_test(other_tables_drop_the_state),
        cmocka_unit_test(optimizer_with_norms_is_refused_and_leaves_no_tables),
        cmocka_unit_test(messages_of_other_states_are_refused),
        cmocka_unit_test(messages_from_other_points_are_refused),
        cmocka_unit_test(kinds_that_only_servers_send_are_refused),
        cmocka_unit_test(wrong_pushes_are_refused),
        cmocka_unit_test(sections_out_of_the_order_of_tables_are_refused),
        cmocka_unit_test(wrong_commits_are_refused),
        cmocka_unit_test(lanes_read_rows_of_the_version_that_the_staleness_names),
        cmocka_unit_test(lanes_read_older_rows_before_other_ranks_commit),
        cmocka_unit_test(rows_that_lanes_read_are_counted_by_their_age),
        cmocka_unit_test(staleness_beyond_the_limit_is_refused),
        cmocka_unit_test(wrong_pulls_are_refused),
        cmocka_unit_test(failed_send_is_returned),
    };

    return cmocka_run_group_tests_name("ps/server", tests, NULL, NULL);
}
