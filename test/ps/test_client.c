/* test_client.c - the client and the leader: over real sockets with servers in other processes, and
 * with wrong answers from a port in memory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/uio.h>

#include "comm/cast.h"
#include "comm/channel.h"
#include "ps/client.h"
#include "ps/leader.h"
#include "ps/ledger.h"
#include "ps/message.h"
#include "ps/plain.h"
#include "ps/port.h"
#include "ps/ps.h"
#include "ps/route.h"

enum { TABLES = 3, LANES = 8, ROOM = 800, ANSWERS = 8 };

/* ---- a real group ---- */

static struct plain plain; /* opened before the processes start */
static struct ps_route route;

struct service { /* of a ps */
    _Atomic int ended;
    bool is_complete;
    char text[256];
};

static void on_end(void *arg, bool is_complete, bool is_aborted, int code, const char *text)
{
    struct service *s = arg;

    (void)is_aborted;
    s->is_complete = is_complete;
    snprintf(s->text, sizeof(s->text), "%d %.240s", code, text);
    atomic_store(&s->ended, 1);
}

static void serve(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct service s = { 0 };
    struct ps_group group = { .view = o.view, .listener = o.listener, .shared_memory = true,
                              .encrypts = cast_encrypts, .deadline_ms = o.deadline_ms,
                              .on_end = on_end };
    struct ps_opts opts = { .n_servers = k->members[self].n_servers, .arg = &s };
    struct ps_facts facts;
    struct ps *ps;
    struct err err;

    memcpy(group.key, k->key, sizeof(group.key));
    EXPECT(ps_open(&opts, &ps, &err) == 0, "%s", err.text);
    EXPECT(ps_start(ps, &group, &err) == 0, "%s", err.text);
    WAIT_UNTIL(atomic_load(&s.ended) != 0);
    EXPECT(s.is_complete, "%s", s.text);
    ps_facts(ps, &facts);
    EXPECT(facts.step == plain.steps, "version %u", (unsigned)facts.step);
    EXPECT(facts.n_shards > 0 && facts.rows_read > 0 && facts.rows_updated > 0, "facts");
    ps_close(ps);
}

/* All ranks; what the control words of a step do. */
static void wait_for_all(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    int64_t *word = (void *)((uint8_t *)k->arenas[self].base + local * k->arena_bytes);
    struct err err;

    *word = 0;
    EXPECT(comm_all_reduce(c, local, word, 1, TENSOR_I64, COMM_MAX, &err) == 0, "%s", err.text);
}

struct replica {
    struct ps_client *client;
    uint32_t first_lane, n_lanes;
    int64_t rows[TABLES][ROOM]; /* row of each slot that was resolved */
    uint32_t n[TABLES];
};

/* Compares the rows with those after step `version`. */
static void look_up(struct replica *r, uint64_t step, uint64_t version, uint32_t lane,
                    uint32_t part)
{
    float values[PLAIN_WIDTH];
    struct err err;

    for (uint32_t t = 0; t < TABLES; t++) {
        int64_t rows[ROOM], slots[ROOM];
        size_t n = 0;

        for (uint64_t row = plain_tables[t].rows; row-- > 0;) /* any order */
            if (plain_lane(step + 1, lane, t, row, values) || plain_mix(row, step) % 31 == 0)
                rows[n++] = (int64_t)row;
        memcpy(slots, rows, n * sizeof(*rows));
        ps_client_resolve(r->client, t, slots, n);
        for (size_t i = 0; i < n; i++) {
            EXPECT(slots[i] <= r->n[t], "slot %d of %u", (int)slots[i], r->n[t]);
            r->n[t] += slots[i] == r->n[t];
            r->rows[t][slots[i]] = rows[i];
        }
    }
    EXPECT(ps_client_fetch(r->client, &err) == 0, "%s", err.text);
    for (uint32_t t = 0; t < TABLES; t++)
        for (uint32_t slot = 0; slot < r->n[t]; slot++)
            EXPECT(memcmp(ps_client_values(r->client)[t] + slot * plain_tables[t].width,
                          plain_row(&plain, version, part, t, (uint64_t)r->rows[t][slot]),
                          plain_tables[t].width * sizeof(float)) == 0,
                   "part %u of table %u, row %d, after step %u", part, t, (int)r->rows[t][slot],
                   (unsigned)step);
}

static void push(struct replica *r, uint64_t step)
{
    struct packed_table shapes[TABLES];
    uint64_t memory[512];
    float *values = malloc(TABLES * ROOM * PLAIN_WIDTH * sizeof(*values)), *at = values;
    struct packed marks;
    struct err err;
    size_t words;

    for (uint32_t t = 0; t < TABLES; t++)
        shapes[t] = (struct packed_table){ .rows = ROOM, .width = plain_tables[t].width };
    words = packed_layout(shapes, TABLES);
    EXPECT(values != NULL && packed_bytes(TABLES, words) <= sizeof(memory), "memory");
    marks = packed_init(shapes, TABLES, words, memory);
    packed_clear(&marks);
    for (uint32_t t = 0; t < TABLES; t++)
        for (uint32_t slot = 0; slot < r->n[t]; slot++)
            if (plain_gradient(step, t, (uint64_t)r->rows[t][slot], r->first_lane, r->n_lanes,
                               at)) {
                marks.marks[shapes[t].first_word + slot / 64] |= (uint64_t)1 << slot % 64;
                at += plain_tables[t].width;
            }
    packed_index(&marks);
    EXPECT(ps_client_push(r->client, step, &marks, values, NULL, plain.clip, &err) == 0, "%s",
           err.text);
    free(values);
}

static void clear(struct replica *r, uint32_t part)
{
    ps_client_begin(r->client, part);
    memset(r->n, 0, sizeof(r->n));
}

static void read_whole(struct ps_leader *l, const struct ps_port *port)
{
    float *got = malloc(ROOM * PLAIN_WIDTH * sizeof(*got));
    struct err err;

    EXPECT(got != NULL, "memory");
    for (uint32_t t = 0; t < TABLES; t++)
        for (uint32_t part = 0; part < plain_all_parts(&plain); part++) {
            EXPECT(ps_leader_read(l, port, &route, plain.steps, t, part, NULL, 0,
                                  plain_tables[t].rows, got, &err) == 0,
                   "%s", err.text);
            EXPECT(memcmp(got, plain_row(&plain, plain.steps, part, t, 0),
                          plain_tables[t].rows * plain_tables[t].width * sizeof(float)) == 0,
                   "part %u of table %u", part, t);
        }
    free(got);
}

static void train(struct cast *k, struct comm *c, uint32_t self, uint32_t local)
{
    static const uint32_t widths[] = { 8, 3, 65 };
    static const size_t rooms[] = { ROOM, ROOM, ROOM };
    uint32_t firsts[TABLES], rank = comm_first_rank(c) + local, share = LANES / comm_world(c);
    struct ps_client_opts o = { .n_tables = TABLES, .widths = widths, .first_shards = firsts,
                                .rooms = rooms, .staleness = plain.staleness };
    struct ps_leader_opts lo = { .tables = plain_tables, .n_tables = TABLES,
                                 .optimizer = plain.type, .hyper = &plain.hyper,
                                 .average = plain.average, .staleness = plain.staleness };
    struct ps_port port = ps_comm_port(c, local);
    struct plain_source source = { &plain, 0, 0 };
    struct ps_settlement s = { .source = plain_read, .arg = &source };
    struct replica *r = calloc(1, sizeof(*r));
    struct ps_leader *leader = NULL;
    struct ps_settled settled = { 0 };
    struct ps_votes votes;
    struct err err;

    EXPECT(r != NULL, "memory");
    for (uint32_t t = 0; t < TABLES; t++)
        firsts[t] = plain_tables[t].first_shard;
    r->first_lane = rank * share;
    r->n_lanes = share;
    EXPECT(ps_client_open(&o, &r->client, &err) == 0, "%s", err.text);
    EXPECT(ps_client_begin_generation(r->client, &port, rank, &route, r->first_lane, share, 0,
                                      &err) == 0,
           "%s", err.text);
    if (rank == 0) {
        EXPECT(ps_leader_open(&lo, &leader, &err) == 0, "%s", err.text);
        EXPECT(ps_leader_settle(leader, &port, &route, &s, &settled, &err) == 0, "%s", err.text);
        EXPECT(settled.n_filled > 0 && settled.n_copied == 0, "settled");
    }
    wait_for_all(k, c, self, local);
    for (uint64_t step = 1; step <= plain.steps; step++) {
        struct optim_hyper hyper = plain_hyper(&plain, step);

        clear(r, 0);
        ps_client_begin_step(r->client);
        for (uint32_t lane = 0; lane < share; lane++)
            look_up(r, step - 1, plain_read_by_lanes(&plain, step - 1), r->first_lane + lane, 0);
        push(r, step);
        if (rank == 0)
            EXPECT(ps_leader_collect(leader, &port, &route, step, &votes, &err) == 0 &&
                       votes.is_finite,
                   "%s", err.text);
        wait_for_all(k, c, self, local);
        EXPECT(ps_client_commit(r->client, step, plain_skips(step) ? NULL : &hyper, &err) == 0,
               "%s", err.text);
    }
    clear(r, plain.n_parts - 1); /* evaluates the averages */
    look_up(r, plain.steps, plain.steps, 0, plain.n_parts - 1);
    if (rank == 0)
        read_whole(leader, &port);
    wait_for_all(k, c, self, local);
    EXPECT(ps_client_end(r->client, true, &err) == 0, "%s", err.text);
    ps_leader_close(leader);
    ps_client_close(r->client);
    free(r);
}

static void scene_train(struct cast *k, uint32_t self)
{
    struct comm_opts o = cast_opts(k, self);
    struct comm *c;

    if (k->members[self].n_servers > 0) {
        serve(k, self);
        return;
    }
    ps_route_make(&o.view, k->shares[63], &route);
    c = cast_open(k, self);
    cast_ranks(k, c, self, train);
    EXPECT(atomic_load(&k->stage->told[self]) == 0, "on_broken: %s", k->stage->why[self]);
    comm_close(c);
    plain_close(&plain);
}

static void trainers_and_servers_train_to_the_bits_of_whole_tables(void **state)
{
    static const char *const layouts[] = { "A2 B2 c2 d2", "A2 A2 a2 b2", "A1 b1" };

    (void)state;
    plain_open(&plain, OPTIM_ADAM, TABLES, LANES, 20, 0.9, 0.5f);
    for (uint32_t i = 0; i < 3; i++) {
        struct cast k;

        plain.staleness = 2 * (i % 2);
        cast_init(&k, layouts[i], true, 4096);
        for (uint32_t m = 0; m < k.n; m++)
            k.members[m].rank = m;
        k.shares[63] = 1 + i % 2; /* replicas; not used by the communicator */
        cast_play(&k, scene_train);
        cast_fini(&k);
    }
    plain_close(&plain);
}

/* ---- wrong answers ---- */

/* A rank, and a ps with two threads: server 0 (point 1) has the even shards, server 1 the odd ones. */
struct fake {
    const struct iovec *places[3]; /* of the points */
    uint32_t n_places[3];
    struct ps_writer answers[ANSWERS];
    uint32_t from[ANSWERS], n_answers, next, n_sent;
    uint32_t n_queries, pulls_from; /* the point of the last PULL */
};

static int fake_send(const struct ps_port *p, uint32_t to, const struct iovec *parts, uint32_t n,
                     struct err *err)
{
    struct fake *f = p->arg;

    uint32_t kind;

    (void)err;
    assert_true((to == 1 || to == 2) && n == 1 && parts[0].iov_len % 8 == 0);
    memcpy(&kind, (const uint8_t *)parts[0].iov_base + 4, sizeof(kind));
    f->n_queries += kind == PS_QUERY;
    if (kind == PS_PULL)
        f->pulls_from = to;
    f->n_sent++;
    return 0;
}

static void fake_place(const struct ps_port *p, uint32_t from, const struct iovec *places,
                       uint32_t n)
{
    struct fake *f = p->arg;

    assert_true(from == 1 || from == 2);
    f->places[from] = places;
    f->n_places[from] = n;
}

/* Writes a message to the places of its point, if it has their size. */
static bool put_into_places(struct fake *f, uint32_t from, const uint8_t *data, size_t bytes)
{
    size_t all = 0;

    for (uint32_t i = 0; i < f->n_places[from]; i++)
        all += f->places[from][i].iov_len;
    if (f->n_places[from] == 0 || all != bytes)
        return false;
    for (uint32_t i = 0; i < f->n_places[from]; i++) {
        memcpy(f->places[from][i].iov_base, data, f->places[from][i].iov_len);
        data += f->places[from][i].iov_len;
    }
    f->n_places[from] = 0;
    return true;
}

static int fake_receive(const struct ps_port *p, struct comm_message *out, struct err *err)
{
    struct fake *f = p->arg;
    struct ps_writer *w = &f->answers[f->next];

    if (f->next == f->n_answers)
        return err_set(err, ERR_TIMEOUT, "no more answers");
    *out = (struct comm_message){ .from = f->from[f->next++], .bytes = w->n, .data = w->data };
    if (out->from < 3 && put_into_places(f, out->from, out->data, out->bytes))
        out->data = NULL;
    return 0;
}

static struct ps_port fake_port(struct fake *f)
{
    return (struct ps_port){ .send = fake_send, .receive = fake_receive, .place = fake_place, .arg = f };
}

static void fake_fini(struct fake *f)
{
    for (uint32_t i = 0; i < ANSWERS; i++)
        ps_writer_fini(&f->answers[i]);
}

static void make_route(void)
{
    static const struct group_member members[] = { { .rank = 0, .n_devices = 1 },
                                                   { .rank = 1, .n_servers = 2 } };
    struct group_view view = { .generation = 1, .members = members, .n_members = 2 };

    ps_route_make(&view, 1, &route);
}

struct answer {
    uint32_t from;
    enum ps_kind kind;
    uint64_t step;
    uint32_t n_sections, tables[2], part;
    uint64_t n[2];
};

/* Sections with rows of zeros. */
static void add_answer(struct fake *f, const struct answer *a)
{
    static const uint32_t widths[] = { 2, 4, 1 };
    struct ps_writer *w = &f->answers[f->n_answers];
    struct ps_message m = { .kind = a->kind, .step = a->step };

    f->from[f->n_answers++] = a->from;
    ps_write_begin(w, &m, a->n_sections);
    for (uint32_t i = 0; i < a->n_sections; i++) {
        size_t bytes = ps_padded(a->n[i] * widths[a->tables[i]]);

        memset(ps_write_room(w, bytes), 0, bytes);
        ps_write_section(w, i, a->tables[i], a->part, a->n[i]);
    }
}

/* Each byte of the set has these bits. */
static void add_held_of(struct fake *f, uint32_t from, uint64_t step, uint32_t flag, uint8_t bits)
{
    struct ps_message m = { .kind = PS_HELD, .step = step, .first = UINT64_MAX, .flag = flag };
    uint64_t set[PS_SET_WORDS];

    memset(set, bits, sizeof(set));
    f->from[f->n_answers] = from;
    ps_write_begin(&f->answers[f->n_answers], &m, 0);
    ps_write_set(&f->answers[f->n_answers], set);
    write_step(&f->answers[f->n_answers], step);
    write_bytes(&f->answers[f->n_answers++], 1000);
}

/* Server 0 has the even shards, server 1 the odd ones. */
static void add_held(struct fake *f, uint32_t from, uint64_t step, uint32_t flag)
{
    add_held_of(f, from, step, flag, from == 1 ? 0x55 : 0xaa);
}

/* The client asks for two rows of table 0 and a row of table 1, all on server 0. */
static int fetch_with(const struct answer *answers, uint32_t n, struct err *err)
{
    static const uint32_t widths[] = { 2, 4 }, firsts[] = { 0, 0 };
    static const size_t rooms[] = { 8, 8 };
    struct ps_client_opts o = { .n_tables = 2, .widths = widths, .first_shards = firsts,
                                .rooms = rooms };
    int64_t rows[] = { 3, 5 }, row = 7;
    struct fake f = { 0 };
    struct ps_port port = fake_port(&f);
    struct ps_client *c;
    int rc;

    make_route();
    assert_int_equal(ps_client_open(&o, &c, err), 0);
    assert_int_equal(ps_client_begin_generation(c, &port, 0, &route, 0, 1, 6, err), 0);
    assert_int_equal(ps_client_fetch(c, err), 0); /* nothing to read */
    assert_int_equal(f.n_sent, 0);
    ps_client_resolve(c, 0, rows, 2);
    ps_client_resolve(c, 1, &row, 1);
    add_held(&f, 1, 6, 0);
    add_held(&f, 2, 6, 0);
    for (uint32_t i = 0; i < n; i++)
        add_answer(&f, &answers[i]);
    rc = ps_client_fetch(c, err);
    assert_int_equal(f.n_sent, 3);
    ps_client_close(c);
    fake_fini(&f);
    return rc;
}

static void wrong_rows_are_refused(void **state)
{
    static const struct answer cases[] = {
        { 1, PS_ROWS, 5, 2, { 0, 1 }, 0, { 2, 1 } }, /* another step */
        { 1, PS_READY, 6, 0, { 0, 0 }, 0, { 0 } },   /* another kind */
        { 2, PS_ROWS, 6, 2, { 0, 1 }, 0, { 2, 1 } }, /* a server that was not asked */
        { 0, PS_ROWS, 6, 2, { 0, 1 }, 0, { 2, 1 } }, /* a rank */
        { 3, PS_ROWS, 6, 2, { 0, 1 }, 0, { 2, 1 } }, /* no server */
        { 1, PS_ROWS, 6, 1, { 0, 0 }, 0, { 2, 0 } }, /* a section is missing */
        { 1, PS_ROWS, 6, 0, { 0, 0 }, 0, { 0, 0 } },
        { 1, PS_ROWS, 6, 2, { 0, 1 }, 0, { 1, 1 } }, /* fewer rows */
        { 1, PS_ROWS, 6, 2, { 0, 1 }, 0, { 3, 1 } }, /* more rows */
        { 1, PS_ROWS, 6, 2, { 0, 1 }, 0, { 1, 2 } }, /* as many, in other tables */
        { 1, PS_ROWS, 6, 2, { 1, 0 }, 0, { 1, 2 } }, /* in another order */
        { 1, PS_ROWS, 6, 2, { 0, 0 }, 0, { 2, 1 } },
        { 1, PS_ROWS, 6, 2, { 0, 1 }, 1, { 2, 1 } }, /* another part */
    };
    static const struct answer good = { 1, PS_ROWS, 6, 2, { 0, 1 }, 0, { 2, 1 } };
    struct err err = { 0 };

    (void)state;
    assert_int_equal(fetch_with(&good, 1, &err), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        err.text[0] = '\0';
        if (fetch_with(&cases[i], 1, &err) != ERR_PEER || err.text[0] == '\0')
            fail_msg("case %u: '%s'", (unsigned)i, err.text);
    }
    assert_int_equal(fetch_with(NULL, 0, &err), ERR_TIMEOUT);
}

/* The client asks for a dense parameter of 64 rows and 10 floats: server 0 has the first block, server 1 the second. */
static int fetch_dense_with(const struct answer *answers, float *out, struct err *err)
{
    static const uint32_t widths[] = { 2, PS_DENSE_WIDTH }, firsts[] = { 0, 0 };
    static const size_t rooms[] = { 8, 0 }, elements = 64 * PS_DENSE_WIDTH + 10;
    struct ps_client_opts o = { .n_tables = 2, .widths = widths, .first_shards = firsts,
                                .rooms = rooms, .n_dense = 1, .elements = &elements };
    struct fake f = { 0 };
    struct ps_port port = fake_port(&f);
    struct ps_client *c;
    int rc;

    make_route();
    assert_int_equal(ps_client_open(&o, &c, err), 0);
    assert_int_equal(ps_client_begin_generation(c, &port, 0, &route, 0, 1, 6, err), 0);
    add_held(&f, 1, 6, 0);
    add_held(&f, 2, 6, 0);
    for (uint32_t i = 0; i < 2; i++) {
        struct ps_writer *w = &f.answers[f.n_answers];
        struct ps_message m = { .kind = answers[i].kind, .step = answers[i].step };
        size_t n = (size_t)answers[i].n[1] * PS_DENSE_WIDTH;
        float *values;

        f.from[f.n_answers++] = answers[i].from;
        ps_write_begin(w, &m, 2);
        ps_write_section(w, 0, answers[i].tables[0], answers[i].part, answers[i].n[0]);
        values = ps_write_room(w, (n + answers[i].n[0] * 2) * sizeof(float));
        ps_write_section(w, 1, answers[i].tables[1], answers[i].part, answers[i].n[1]);
        for (size_t k = 0; k < n; k++)
            values[answers[i].n[0] * 2 + k] = (float)k + 100000.0f * (float)i;
    }
    rc = ps_client_fetch_dense(c, &out, err);
    assert_int_equal(f.n_sent, 4);
    ps_client_close(c);
    fake_fini(&f);
    return rc;
}

static void dense_parameters_are_joined_from_their_blocks(void **state)
{
    static const struct answer answers[] = { { 1, PS_ROWS, 6, 2, { 0, 1 }, 0, { 0, 64 } },
                                             { 2, PS_ROWS, 6, 2, { 0, 1 }, 0, { 0, 1 } } };
    static const struct answer cases[][2] = {
        { { 1, PS_ROWS, 5, 2, { 0, 1 }, 0, { 0, 64 } }, answers[1] }, /* another step */
        { { 1, PS_ROWS, 6, 2, { 0, 1 }, 0, { 0, 63 } }, answers[1] }, /* fewer rows */
        { { 1, PS_ROWS, 6, 2, { 0, 1 }, 0, { 1, 64 } }, answers[1] }, /* rows of another table */
        { { 1, PS_ROWS, 6, 2, { 0, 1 }, 1, { 0, 64 } }, answers[1] }, /* another part */
        { answers[0], { 2, PS_ROWS, 6, 2, { 0, 1 }, 0, { 0, 2 } } },  /* more rows */
        { answers[0], answers[0] },                                  /* twice */
        { answers[0], { 0, PS_ROWS, 6, 2, { 0, 1 }, 0, { 0, 1 } } }, /* a rank */
        { answers[0], { 2, PS_ROWS, 6, 2, { 0, 0 }, 0, { 0, 1 } } }, /* a table twice, of the same size */
    };
    enum { N = 64 * PS_DENSE_WIDTH + 10 };
    float *out = calloc(N + 1, sizeof(*out));
    struct err err = { 0 };

    (void)state;
    out[N] = 7; /* the zeros after the last float are not copied */
    assert_int_equal(fetch_dense_with(answers, out, &err), 0);
    for (size_t i = 0; i < N; i++)
        if (out[i] !=
            (i < 64 * PS_DENSE_WIDTH ? (float)i : 100000.0f + (float)(i - 64 * PS_DENSE_WIDTH)))
            fail_msg("float %zu: %g", i, (double)out[i]);
    assert_true(out[N] == 7);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        if (fetch_dense_with(cases[i], out, &err) != ERR_PEER)
            fail_msg("case %zu is accepted", i);
    free(out);
}

/* Two servers hold half of the rows each; a row has 1032 bytes in a message. */
static void dense_gradients_that_exceed_a_message_are_refused(void **state)
{
    static const uint32_t width = PS_DENSE_WIDTH, first = 0;
    static const size_t room = 0;
    const size_t most = (size_t)COMM_MESSAGE_MAX / 1032 / 64 * 64 * 2 * PS_DENSE_WIDTH;
    struct fake f = { 0 };
    struct ps_port port = fake_port(&f);
    struct err err = { 0 };

    (void)state;
    make_route();
    for (uint32_t more = 0; more < 2; more++) {
        size_t elements = most + more * 64 * 2 * PS_DENSE_WIDTH;
        struct ps_client_opts o = { .n_tables = 1, .widths = &width, .first_shards = &first,
                                    .rooms = &room, .n_dense = 1, .elements = &elements };
        struct ps_client *c;

        assert_int_equal(ps_client_open(&o, &c, &err), 0);
        assert_int_equal(ps_client_begin_generation(c, &port, 0, &route, 0, 1, 6, &err),
                         more == 0 ? 0 : ERR_UNSUPPORTED);
        ps_client_close(c);
    }
    assert_non_null(strstr(err.text, "use more ps tasks"));
}

/* A rank and two ps. */
static void make_route_of_two(void)
{
    static const struct group_member members[] = { { .rank = 0, .n_devices = 1 },
                                                   { .rank = 1, .n_servers = 1 },
                                                   { .rank = 2, .n_servers = 1 } };
    struct group_view view = { .generation = 1, .members = members, .n_members = 3 };

    ps_route_make(&view, 2, &route);
}

static struct ps_client *open_client(struct fake *f, uint64_t version)
{
    static const uint32_t width = 2, first = 0;
    static const size_t room = 8;
    struct ps_client_opts o = { .n_tables = 1, .widths = &width, .first_shards = &first,
                                .rooms = &room };
    struct ps_port port = fake_port(f);
    struct ps_client *c;

    assert_int_equal(ps_client_open(&o, &c, NULL), 0);
    assert_int_equal(ps_client_begin_generation(c, &port, 0, &route, 0, 1, version, NULL), 0);
    return c;
}

static int fetch_row(struct ps_client *c, int64_t row, struct err *err)
{
    ps_client_begin(c, 0);
    ps_client_resolve(c, 0, &row, 1);
    return ps_client_fetch(c, err);
}

static void forget_answers(struct fake *f)
{
    fake_fini(f);
    memset(f, 0, sizeof(*f));
}

/* The preferred holder gets a copy of the shards during steps 6 to 8. */
static void rows_come_from_a_complete_holder_until_the_preferred_one_has_its_copy(void **state)
{
    static const bool asks[] = { true, true, false, true, false }; /* after 0, 1 and 3 steps */
    struct fake f = { 0 };
    struct ps_client *c;
    uint32_t preferred, other;

    (void)state;
    make_route_of_two();
    preferred = 1 + ps_route_holders(&route, 0)[0];
    other = 3 - preferred;
    c = open_client(&f, 6);
    for (uint64_t step = 6; step < 11; step++) {
        bool is_copied = step >= 9;
        struct answer rows = { is_copied ? preferred : other, PS_ROWS, step, 1, { 0 }, 0, { 1 } };

        forget_answers(&f);
        if (asks[step - 6]) {
            /* in any order; not complete: the preferred holder lacks shard 0 */
            add_held_of(&f, other, step - 1, 0, 0xff); /* it has not applied the step yet */
            add_held_of(&f, preferred, step, 0, is_copied ? 0xff : 0xfe);
        }
        add_answer(&f, &rows);
        assert_int_equal(fetch_row(c, 3, NULL), 0);
        assert_int_equal(f.n_queries, asks[step - 6] ? 2 : 0);
        assert_int_equal(f.pulls_from, is_copied ? preferred : other);
        assert_int_equal(ps_client_commit(c, step + 1, NULL, NULL), 0);
    }
    ps_client_close(c);
    fake_fini(&f);
}

static void wrong_answers_to_the_query_are_refused(void **state)
{
    static const struct {
        uint32_t from[2];
        uint64_t step;
        uint8_t bits;
        const char *text;
    } cases[] = {
        { { 1, 1 }, 6, 0xff, "server 0" },                /* two answers */
        { { 0, 1 }, 6, 0xff, "server" },                  /* a rank */
        { { 3, 1 }, 6, 0xff, "server 2" },                /* no server */
        { { 1, 2 }, 4, 0xff, "of step 4" },               /* another version */
        { { 1, 2 }, 7, 0xff, "of step 7" },
        { { 1, 2 }, 6, 0xfe, "no server has all rows" },  /* of shard 0 */
    };

    (void)state;
    make_route_of_two();
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct fake f = { 0 };
        struct ps_client *c = open_client(&f, 6);
        struct err err = { 0 };

        for (uint32_t k = 0; k < 2; k++)
            add_held_of(&f, cases[i].from[k], cases[i].step, 0, cases[i].bits);
        assert_int_equal(fetch_row(c, 3, &err), ERR_PEER);
        if (strstr(err.text, cases[i].text) == NULL)
            fail_msg("case %u: '%s'", (unsigned)i, err.text);
        ps_client_close(c);
        fake_fini(&f);
    }
}

/* ---- the leader ---- */

static const struct ps_table table = { "t", 300, 1, 0, 1, 0, false, false, { 0 } };

static struct ps_leader *open_leader(void)
{
    static const struct optim_hyper h = { .learning_rate = 1 };
    struct ps_leader_opts o = { .tables = &table, .n_tables = 1, .optimizer = OPTIM_SGD,
                                .hyper = &h };
    struct ps_leader *l;

    make_route();
    assert_int_equal(ps_leader_open(&o, &l, NULL), 0);
    return l;
}

static void wrong_answers_to_the_settlement_are_refused(void **state)
{
    static const struct answer ready = { 1, PS_READY, 4, 0, { 0 }, 0, { 0 } };
    static const struct answer of_other_step = { 2, PS_READY, 5, 0, { 0 }, 0, { 0 } };
    struct ps_settlement s = { .step = 4 };

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        struct ps_leader *l = open_leader();
        struct fake f = { 0 };
        struct ps_port port = fake_port(&f);
        struct ps_settled settled = { 0 };
        struct err err = { 0 };

        if (i == 0)
            add_answer(&f, &ready);
        if (i == 1)
            add_held(&f, 0, 4, 0); /* from a rank */
        add_held(&f, 1, 4, 0);
        add_held(&f, 2, i == 2 ? 3 : 4, 0);
        if (i == 3) {
            add_answer(&f, &ready);
            add_answer(&f, &of_other_step);
        }
        /* server 1 of an older step has all odd shards: the state is lost */
        assert_int_equal(ps_leader_settle(l, &port, &route, &s, &settled, &err),
                         i == 2 ? ERR_REFUSED : ERR_PEER);
        assert_true(err.text[0] != '\0');
        assert_int_equal(f.n_sent, i == 3 ? 6 : 4); /* SETUP and QUERY, then BEGIN */
        assert_int_equal(settled.n_copied + settled.n_filled + settled.n_committed, 0);
        ps_leader_close(l);
        fake_fini(&f);
    }
}

static void add_vote(struct fake *f, uint32_t from, uint64_t step, uint32_t flag, uint32_t checksum,
                     double squares)
{
    struct ps_writer *w = &f->answers[f->n_answers];
    struct ps_message m = { .kind = PS_VOTE, .step = step, .flag = flag };
    uint32_t *checksums;
    double *all;

    f->from[f->n_answers++] = from;
    ps_write_begin(w, &m, 0);
    checksums = ps_write_room(w, PS_SHARDS * sizeof(*checksums));
    for (uint32_t i = 0; i < PS_SHARDS; i++)
        checksums[i] = checksum;
    all = ps_write_room(w, PS_SHARDS * sizeof(*all));
    for (uint32_t i = 0; i < PS_SHARDS; i++)
        all[i] = squares;
    memset(ps_write_room(w, PS_CHECK_SHARDS * 8), 0, PS_CHECK_SHARDS * 8);
}

static int collect_from(struct fake *f, struct ps_votes *votes, struct err *err)
{
    struct ps_leader *l = open_leader();
    struct ps_port port = fake_port(f);
    int rc = ps_leader_collect(l, &port, &route, 9, votes, err);

    ps_leader_close(l);
    fake_fini(f);
    return rc;
}

static void votes_are_added_over_the_holders_of_each_shard(void **state)
{
    struct fake f = { 0 };
    struct ps_votes votes;
    struct err err = { 0 };

    (void)state;
    add_vote(&f, 2, 9, 1, 5, 2);
    add_vote(&f, 1, 9, 1, 6, 1); /* the shards of the two differ: their sums are not compared */
    assert_int_equal(collect_from(&f, &votes, &err), 0);
    assert_true(votes.is_finite && votes.squares == 512 + 1024);
    f = (struct fake){ 0 };
    add_vote(&f, 2, 9, 0, 5, 2);
    add_vote(&f, 1, 9, 1, 6, 1);
    assert_int_equal(collect_from(&f, &votes, &err), 0);
    assert_false(votes.is_finite);
    f = (struct fake){ 0 };
    add_vote(&f, 2, 8, 1, 5, 2);
    assert_int_equal(collect_from(&f, &votes, &err), ERR_PEER);
    assert_non_null(strstr(err.text, "vote on step 8"));
}

static void vote_of_one_server_asks_the_coordinator_for_a_checkpoint(void **state)
{
    struct fake f = { 0 };
    struct ps_votes votes;
    struct err err = { 0 };

    (void)state;
    add_vote(&f, 2, 9, PS_VOTE_FINITE | PS_VOTE_SAVE, 5, 2);
    add_vote(&f, 1, 9, PS_VOTE_FINITE, 6, 1);
    assert_int_equal(collect_from(&f, &votes, &err), 0);
    assert_true(votes.wants_save && votes.is_finite);
    f = (struct fake){ 0 };
    add_vote(&f, 2, 9, PS_VOTE_FINITE, 5, 2);
    add_vote(&f, 1, 9, PS_VOTE_FINITE, 6, 1);
    assert_int_equal(collect_from(&f, &votes, &err), 0);
    assert_false(votes.wants_save);
    f = (struct fake){ 0 };
    add_vote(&f, 2, 9, 2 * PS_VOTE_SAVE, 5, 2);
    add_vote(&f, 1, 9, PS_VOTE_FINITE, 6, 1);
    assert_int_equal(collect_from(&f, &votes, &err), ERR_PEER);
    assert_non_null(strstr(err.text, "vote with flag 4"));
}

static void different_sums_of_two_holders_are_an_error_that_names_them(void **state)
{
    struct ps_leader *l = open_leader();
    struct fake f = { 0 };
    struct ps_port port = fake_port(&f);
    struct ps_votes votes;
    struct err err = { 0 };

    (void)state;
    make_route_of_two();
    add_vote(&f, 2, 9, 1, 5, 2);
    add_vote(&f, 1, 9, 1, 6, 2);
    assert_int_equal(ps_leader_collect(l, &port, &route, 9, &votes, &err), ERR_DEVICE);
    assert_non_null(strstr(err.text, "servers 1 and 0"));
    assert_non_null(strstr(err.text, "000005 and 000006"));
    ps_leader_close(l);
    fake_fini(&f);
}

/* Both servers hold their shards. */
static void settle_at(struct ps_leader *l, const struct ps_port *port, struct fake *f,
                      uint64_t step)
{
    struct ps_message ready = { .kind = PS_READY, .step = step, .flag = 1 };
    struct ps_settlement s = { .step = step };
    struct ps_settled settled = { 0 };

    add_held(f, 1, step, 0);
    add_held(f, 2, step, 0);
    for (uint32_t i = 1; i <= 2; i++) {
        f->from[f->n_answers] = i;
        ps_write_begin(&f->answers[f->n_answers++], &ready, 0);
    }
    assert_int_equal(ps_leader_settle(l, port, &route, &s, &settled, NULL), 0);
}

static void wrong_rows_of_whole_tables_are_refused(void **state)
{
    /* rows 0 to 63, 128 to 191 and 256 to 299 are in even shards */
    static const struct answer cases[][2] = {
        { { 1, PS_ROWS, 9, 1, { 2 }, 0, { 172 } }, { 2, PS_ROWS, 9, 1, { 2 }, 0, { 128 } } },
        { { 1, PS_ROWS, 9, 1, { 2 }, 0, { 171 } }, { 2, PS_ROWS, 9, 1, { 2 }, 0, { 128 } } },
        { { 1, PS_ROWS, 9, 1, { 2 }, 0, { 173 } }, { 2, PS_ROWS, 9, 1, { 2 }, 0, { 128 } } },
        { { 1, PS_ROWS, 8, 1, { 2 }, 0, { 172 } }, { 2, PS_ROWS, 9, 1, { 2 }, 0, { 128 } } },
        { { 1, PS_ROWS, 9, 1, { 2 }, 1, { 172 } }, { 2, PS_ROWS, 9, 1, { 2 }, 0, { 128 } } },
        { { 1, PS_ROWS, 9, 0, { 2 }, 0, { 172 } }, { 2, PS_ROWS, 9, 1, { 2 }, 0, { 128 } } },
        { { 1, PS_ROWS, 9, 1, { 2 }, 0, { 172 } }, { 2, PS_READY, 9, 0, { 0 }, 0, { 0 } } },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct ps_leader *l = open_leader();
        struct fake f = { 0 };
        struct ps_port port = fake_port(&f);
        struct err err = { 0 };
        float out[300];

        settle_at(l, &port, &f, 9);
        for (uint32_t k = 0; k < 2; k++) {
            uint32_t zero = 0;

            add_answer(&f, &cases[i][k]);
            if (cases[i][k].n_sections > 0) /* table 0 of the leader has the width of table 2 */
                ps_write_section(&f.answers[4 + k], 0, zero, cases[i][k].part, cases[i][k].n[0]);
        }
        if (ps_leader_read(l, &port, &route, 9, 0, 0, NULL, 0, 300, out, &err) !=
            (i == 0 ? 0 : ERR_PEER))
            fail_msg("case %u: '%s'", (unsigned)i, err.text);
        assert_int_equal(f.n_sent, 6 + 2);
        ps_leader_close(l);
        fake_fini(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trainers_and_servers_train_to_the_bits_of_whole_tables),
        cmocka_unit_test(wrong_rows_are_refused),
        cmocka_unit_test(dense_parameters_are_joined_from_their_blocks),
        cmocka_unit_test(dense_gradients_that_exceed_a_message_are_refused),
        cmocka_unit_test(rows_come_from_a_complete_holder_until_the_preferred_one_has_its_copy),
        cmocka_unit_test(wrong_answers_to_the_query_are_refused),
        cmocka_unit_test(wrong_answers_to_the_settlement_are_refused),
        cmocka_unit_test(votes_are_added_over_the_holders_of_each_shard),
        cmocka_unit_test(vote_of_one_server_asks_the_coordinator_for_a_checkpoint),
        cmocka_unit_test(different_sums_of_two_holders_are_an_error_that_names_them),
        cmocka_unit_test(wrong_rows_of_whole_tables_are_refused),
    };

    signal(SIGPIPE, SIG_IGN); /* as the daemon */
    return cmocka_run_group_tests_name("ps/client", tests, NULL, NULL);
}
