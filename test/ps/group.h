/* group.h - a whole group in one thread: trainers (one rank each), parameter servers and the leader.
 *
 * Servers and the leader are those of lib/ps. A rank is a script: QUERY, PULL, PUSH, COMMIT. Messages of a
 * pair of points arrive in order; otherwise each event is a random choice: a message arrives, or a
 * rank goes on. A test kills tasks before chosen events. Checked after every event: no server is
 * ahead of a rank. Checked for every ROWS: the bits of plain.h. */
#ifndef TEST_PS_GROUP_H
#define TEST_PS_GROUP_H

#include <stdio.h>
#include <sys/uio.h>

#include "base/err.h"
#include "base/group_view.h"
#include "comm/channel.h"
#include "comm/comm.h"
#include "ps/leader.h"
#include "ps/message.h"
#include "ps/plain.h"
#include "ps/port.h"
#include "ps/route.h"
#include "ps/server.h"

enum { TRAINERS = 4, PS = 4, THREADS_MAX = 3, TASKS = TRAINERS + PS, KILLS = 4 };
enum { POINTS = TRAINERS + PS * THREADS_MAX };

static const uint32_t threads_of[PS] = { 2, 1, 2, 3 };

struct mail {
    struct mail *next;
    uint32_t from;
    size_t n;
    uint64_t data[];
};

struct queue {
    struct mail *first, **last;
};

enum rank_state { AT_REST, STARTS, ASKS, READS, PUSHES, VOTES, COMMITS, ENDS, HAS_ENDED };

struct trainer {
    bool lives;
    uint64_t done; /* newest step that it has completed */
    enum rank_state state;
    uint32_t n_owed, next; /* next: server that receives the next message */
    uint32_t first_lane, n_lanes;
    uint64_t held[POINTS][PS_SET_WORDS]; /* of the HELDs: [point of a server] */
    /* of the PULLs: [point of a server] */
    uint64_t *asked[POINTS]; /* owned; table, row, table, row, ... */
    uint32_t n_asked[POINTS];
};

struct ps_task {
    bool lives;
    struct ps_server *servers[THREADS_MAX]; /* owned */
    /* per shard: it is a holder; it certainly has the valid rows; it may have them */
    bool owns[PS_SHARDS], holds[PS_SHARDS], may_hold[PS_SHARDS];
};

struct kill {
    uint64_t at; /* number of the event before which the task dies */
    uint32_t task;
};

struct group {
    struct plain *plain;
    uint64_t random, n_events;
    uint32_t replicas;
    uint64_t batch_floats; /* of a copy between servers */
    const char *checkpoints; /* directory of all servers; NULL: none */
    struct trainer trainers[TRAINERS];
    struct ps_task ps[PS];
    struct kill kills[KILLS];
    uint32_t n_kills;

    /* the generation */
    uint32_t n_ranks, ranks[TRAINERS]; /* trainer of each rank */
    uint32_t n_servers, owner[POINTS], thread[POINTS]; /* of each server, counted from 0 */
    struct ps_route route;
    uint32_t leader; /* rank */
    struct ps_leader *leads; /* owned */
    struct queue queues[POINTS][POINTS], inbox;
    struct mail *read; /* owned; what the leader received last */
    uint8_t *handled;  /* owned; the message that a server handles, or what it gave in exchange */
    size_t handled_room;
    bool is_broken, leader_reads, servers_may_fail;
    uint64_t room[PS][THREADS_MAX]; /* bytes of each server; room 0: no limit */
    uint32_t n_exceeded; /* BEGINs that asked for more than the room */
    struct err failure; /* of the last server that has failed */
    uint32_t n_left; /* events until a broken generation is over */
    uint64_t decided;

    /* over all generations */
    uint32_t n_later, n_skipped, n_refused, n_copied, n_followed, n_committed, n_waits;
    uint32_t n_reports; /* WAIT of servers that generate rows, which the leader received */
};

static inline uint64_t group_draw(struct group *g, uint64_t below)
{
    g->random ^= g->random >> 12;
    g->random ^= g->random << 25;
    g->random ^= g->random >> 27;
    return (g->random * UINT64_C(0x2545f4914f6cdd1d) >> 16) % below;
}

/* ---- mail ---- */

static inline void queue_add(struct queue *q, struct mail *m)
{
    m->next = NULL;
    if (q->first == NULL)
        q->last = &q->first;
    *q->last = m;
    q->last = &m->next;
}

static inline struct mail *queue_take(struct queue *q)
{
    struct mail *m = q->first;

    if (m != NULL)
        q->first = m->next;
    return m;
}

static inline void queue_clear(struct queue *q)
{
    for (struct mail *m; (m = queue_take(q)) != NULL;)
        free(m);
}

static inline bool lives(const struct group *g, uint32_t point)
{
    return point < g->n_ranks ? g->trainers[g->ranks[point]].lives
                              : g->ps[g->owner[point - g->n_ranks]].lives;
}

static inline void group_send(struct group *g, uint32_t from, uint32_t to,
                              const struct iovec *parts, uint32_t n)
{
    size_t bytes = 0;
    struct mail *m;

    for (uint32_t i = 0; i < n; i++)
        bytes += parts[i].iov_len;
    assert_true(to < g->n_ranks + g->n_servers && to != from);
    if (!lives(g, to))
        return;
    m = malloc(sizeof(*m) + bytes);
    assert_non_null(m);
    m->from = from;
    m->n = bytes;
    bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        memcpy((uint8_t *)m->data + bytes, parts[i].iov_base, parts[i].iov_len);
        bytes += parts[i].iov_len;
    }
    queue_add(&g->queues[from][to], m);
}

static inline void group_write(struct group *g, uint32_t from, uint32_t to,
                               const struct ps_writer *w)
{
    struct iovec part = { w->data, w->n };

    assert_false(w->failed);
    group_send(g, from, to, &part, 1);
}

/* ---- tasks ---- */

struct end { /* arg of a server */
    struct group *g;
    uint32_t ps, thread;
};

static struct end group_ends[PS][THREADS_MAX];

static inline struct ps_server *server_at(const struct group *g, uint32_t server)
{
    return g->ps[g->owner[server]].servers[g->thread[server]];
}

static inline uint32_t point_of(const struct group *g, uint32_t ps, uint32_t thread)
{
    for (uint32_t i = 0; i < g->n_servers; i++)
        if (g->owner[i] == ps && g->thread[i] == thread)
            return g->n_ranks + i;
    fail_msg("ps %u is not in the generation", ps);
    return 0;
}

static inline int server_sends(void *arg, uint32_t to, const struct iovec *parts, uint32_t n,
                               struct err *err)
{
    const struct end *e = arg;

    (void)err;
    group_send(e->g, point_of(e->g, e->ps, e->thread), to, parts, n);
    return 0;
}

static inline void server_exchanges(void *arg, uint8_t **data, size_t *room)
{
    struct group *g = ((const struct end *)arg)->g;
    uint8_t *given = *data;
    size_t given_room = *room;

    assert_non_null(g->handled);
    *data = g->handled;
    *room = g->handled_room;
    g->handled = given;
    g->handled_room = given_room;
}

/* ps_server_opts.reserve: a ps of a real group would end itself beyond the limit. */
static inline int server_reserves(void *arg, uint64_t bytes, uint64_t memory, struct err *err)
{
    struct end *e = arg;

    (void)memory;
    (void)err;
    if (e->g->room[e->ps][e->thread] > 0 && bytes > e->g->room[e->ps][e->thread])
        e->g->n_exceeded++;
    return 0;
}

static inline uint64_t server_room(void *arg)
{
    const struct end *e = arg;
    uint64_t room = e->g->room[e->ps][e->thread];

    return room > 0 ? room : UINT64_MAX;
}

static inline void group_start_ps(struct group *g, uint32_t i)
{
    struct ps_task *p = &g->ps[i];

    assert_false(p->lives);
    memset(p, 0, sizeof(*p));
    p->lives = true;
    for (uint32_t t = 0; t < threads_of[i]; t++) {
        struct ps_server_opts o = { .thread = t, .n_threads = threads_of[i], .send = server_sends,
                                    .batch_floats = g->batch_floats,
                                    .exchange = server_exchanges,
                                    .reserve = server_reserves,
                                    .room = server_room,
                                    .directory = g->checkpoints,
                                    .arg = &group_ends[i][t] };

        group_ends[i][t] = (struct end){ g, i, t };
        assert_int_equal(ps_server_open(&o, &p->servers[t], NULL), 0);
    }
}

static inline void group_kill(struct group *g, uint32_t task)
{
    if (task < TRAINERS) {
        g->trainers[task].lives = false;
        return;
    }
    for (uint32_t t = 0; g->ps[task - TRAINERS].lives && t < THREADS_MAX; t++) {
        ps_server_close(g->ps[task - TRAINERS].servers[t]);
        g->ps[task - TRAINERS].servers[t] = NULL;
    }
    g->ps[task - TRAINERS].lives = false;
}

static inline bool task_lives(const struct group *g, uint32_t task)
{
    return task < TRAINERS ? g->trainers[task].lives : g->ps[task - TRAINERS].lives;
}

/* Kills the tasks whose time has come. A dead task's messages that are on the way arrive, or some
 * do not. */
static inline void kill_due(struct group *g)
{
    for (uint32_t k = 0; k < g->n_kills; k++) {
        if (g->kills[k].at != g->n_events || !task_lives(g, g->kills[k].task))
            continue;
        group_kill(g, g->kills[k].task);
        for (uint32_t p = 0; p < g->n_ranks + g->n_servers; p++)
            for (uint32_t q = 0; q < g->n_ranks + g->n_servers; q++)
                if (!lives(g, q) || (!lives(g, p) && group_draw(g, 2) == 0))
                    queue_clear(&g->queues[p][q]);
        if (!g->is_broken)
            g->n_left = (uint32_t)group_draw(g, 30);
        g->is_broken = true;
    }
}

/* ---- ranks ---- */

/* Returns the server that sends the rows of a shard to a rank. */
static inline uint32_t reader_of(const struct group *g, const struct trainer *t, uint32_t rank,
                                 uint32_t shard)
{
    const uint32_t *holders = ps_route_holders(&g->route, shard);

    for (uint32_t k = 0; k < g->route.n_holders; k++) {
        uint32_t server = holders[(rank + k) % g->route.n_holders];

        if (ps_set_has(t->held[server], shard))
            return server;
    }
    fail_msg("no server has shard %u", shard);
    return 0;
}

static inline bool asks(const struct group *g, const struct trainer *t, uint32_t rank,
                        uint32_t server, uint32_t table, uint64_t row)
{
    float values[PLAIN_WIDTH];
    uint32_t shard = plain_shard(&g->plain->tables[table], row);

    return plain_gradient(t->done + 1, table, row, t->first_lane, t->n_lanes, values) &&
           reader_of(g, t, rank, shard) == server;
}

/* Lists what a rank reads from a server: table and row. */
static inline void list_rows(struct group *g, uint32_t rank, uint32_t server)
{
    struct trainer *t = &g->trainers[g->ranks[rank]];
    uint32_t n = 0;

    free(t->asked[server]);
    t->asked[server] = malloc(2 * 67000 * sizeof(uint64_t));
    assert_non_null(t->asked[server]);
    for (uint32_t table = 0; table < g->plain->n_tables; table++)
        for (uint64_t row = 0; row < plain_rows(&g->plain->tables[table]); row++)
            if (asks(g, t, rank, server, table, row)) {
                t->asked[server][n++] = table;
                t->asked[server][n++] = row;
            }
    t->n_asked[server] = n / 2;
}

static inline void send_pull(struct group *g, uint32_t rank, uint32_t server)
{
    struct trainer *t = &g->trainers[g->ranks[rank]];
    struct ps_message m = { .kind = PS_PULL, .flag = 1,
                            .step = plain_read_by_lanes(g->plain, t->done) };
    struct ps_writer w = { 0 };
    uint32_t i = 0;

    list_rows(g, rank, server);
    if (t->n_asked[server] == 0)
        return;
    ps_write_begin(&w, &m, g->plain->n_tables);
    for (uint32_t table = 0; table < g->plain->n_tables; table++) {
        uint64_t n = 0;

        for (; i < t->n_asked[server] && t->asked[server][2 * i] == table; i++, n++)
            *(uint64_t *)ps_write_room(&w, sizeof(uint64_t)) =
                plain_number(&g->plain->tables[table], t->asked[server][2 * i + 1]);
        ps_write_section(&w, table, table, 0, n);
    }
    group_write(g, rank, g->n_ranks + server, &w);
    ps_writer_fini(&w);
    t->n_owed++;
}

static inline void check_bits(const float *got, const float *expected, uint32_t width,
                              const char *what, uint64_t step, uint32_t table, uint64_t row)
{
    if (memcmp(got, expected, width * sizeof(*got)) != 0)
        fail_msg("%s: table %u, row %u after step %u: %.9g, expected %.9g", what, table,
                 (unsigned)row, (unsigned)step, (double)got[0], (double)expected[0]);
}

static inline void read_message(const struct group *g, const struct mail *mail,
                                struct ps_section *sections, struct ps_message *m)
{
    uint32_t widths[PLAIN_TABLES];
    struct err err = { 0 };

    for (uint32_t i = 0; i < PLAIN_TABLES; i++)
        widths[i] = plain_tables[i].width;
    if (ps_message_read((const uint8_t *)mail->data, mail->n, widths, g->plain->n_tables, sections,
                        m, &err) < 0)
        fail_msg("%s", err.text);
}

/* All servers have answered QUERY. */
static inline void send_pulls(struct group *g, uint32_t rank)
{
    struct trainer *t = &g->trainers[g->ranks[rank]];

    for (uint32_t s = 0; s < g->n_servers; s++)
        send_pull(g, rank, s);
    t->state = t->n_owed > 0 ? READS : PUSHES;
}

static inline void rank_receives(struct group *g, uint32_t rank, const struct mail *mail)
{
    static struct ps_section sections[PS_TABLES_MAX];
    struct trainer *t = &g->trainers[g->ranks[rank]];
    uint32_t server = mail->from - g->n_ranks, at = 0;
    uint64_t version = plain_read_by_lanes(g->plain, t->done);
    struct ps_message m;

    read_message(g, mail, sections, &m);
    if (t->state == ASKS) {
        assert_int_equal(m.kind, PS_HELD);
        memcpy(t->held[server], m.shards, sizeof(t->held[server]));
        if (--t->n_owed == 0)
            send_pulls(g, rank);
        return;
    }
    assert_int_equal(m.kind, PS_ROWS);
    assert_int_equal(m.step, version);
    assert_int_equal(t->state, READS);
    for (uint32_t i = 0; i < m.n_sections; i++)
        for (uint64_t k = 0; k < sections[i].n; k++, at++) {
            uint32_t table = (uint32_t)t->asked[server][2 * at];
            uint64_t row = t->asked[server][2 * at + 1];

            assert_int_equal(sections[i].table, table);
            check_bits(sections[i].values + k * plain_tables[table].width,
                       plain_row(g->plain, version, 0, table, row), plain_tables[table].width,
                       "a rank reads", version, table, row);
        }
    assert_int_equal(at, t->n_asked[server]);
    if (--t->n_owed == 0)
        t->state = PUSHES;
}

static inline bool has_holder(const struct group *g, uint32_t shard, uint32_t server)
{
    for (uint32_t h = 0; h < g->route.n_holders; h++)
        if (ps_route_holders(&g->route, shard)[h] == server)
            return true;
    return false;
}

static inline void write_push(const struct group *g, const struct trainer *t, uint32_t server,
                              struct ps_writer *w)
{
    struct ps_message m = { .kind = PS_PUSH, .step = t->done + 1, .number = t->first_lane,
                            .first = t->n_lanes, .clip = g->plain->clip };
    float *values = malloc(67000 * PLAIN_WIDTH * sizeof(*values));

    assert_non_null(values);
    ps_write_begin(w, &m, g->plain->n_tables);
    for (uint32_t table = 0; table < g->plain->n_tables; table++) {
        uint32_t width = plain_tables[table].width;
        uint64_t n = 0;

        for (uint64_t row = 0; row < plain_rows(&g->plain->tables[table]); row++)
            if (has_holder(g, plain_shard(&g->plain->tables[table], row), server) &&
                plain_gradient(m.step, table, row, t->first_lane, t->n_lanes, values + n * width)) {
                *(uint64_t *)ps_write_room(w, sizeof(uint64_t)) =
                    plain_number(&g->plain->tables[table], row);
                n++;
            }
        values[n * width] = 0;
        memcpy(ps_write_room(w, ps_padded(n * width)), values, ps_padded(n * width));
        ps_write_section(w, table, table, 0, n);
    }
    free(values);
}

static inline struct ps_message commit_of(const struct plain *p, uint64_t step)
{
    return (struct ps_message){ .kind = PS_COMMIT, .step = step, .flag = plain_skips(step),
                                .hyper = plain_hyper(p, step) };
}

static inline bool can_act(const struct group *g, uint32_t rank)
{
    const struct trainer *t = &g->trainers[g->ranks[rank]];

    return t->lives && (t->state == STARTS || t->state == PUSHES || t->state == COMMITS ||
                        t->state == ENDS || (t->state == VOTES && g->decided == t->done + 1));
}

static void collect(struct group *g);

/* Sends one message, or begins the next phase. */
static inline void rank_acts(struct group *g, uint32_t rank)
{
    struct trainer *t = &g->trainers[g->ranks[rank]];
    struct ps_message m = commit_of(g->plain, t->done);
    struct ps_writer w = { 0 };

    switch (t->state) {
    case STARTS:
        m = (struct ps_message){ .kind = PS_QUERY };
        ps_write_begin(&w, &m, 0);
        for (uint32_t s = 0; s < g->n_servers; s++)
            group_write(g, rank, g->n_ranks + s, &w);
        t->n_owed = g->n_servers;
        t->state = ASKS;
        t->next = 0;
        break;
    case PUSHES:
        write_push(g, t, t->next, &w);
        group_write(g, rank, g->n_ranks + t->next, &w);
        if (++t->next < g->n_servers)
            break;
        t->state = VOTES;
        if (rank == g->leader)
            collect(g);
        break;
    case VOTES: /* the commit gate */
        t->done++;
        t->state = COMMITS;
        t->next = 0;
        break;
    case COMMITS:
    case ENDS:
        if (t->state == ENDS)
            m = (struct ps_message){ .kind = PS_END, .flag = 1 };
        ps_write_begin(&w, &m, 0);
        group_write(g, rank, g->n_ranks + t->next, &w);
        if (++t->next < g->n_servers)
            break;
        t->next = 0;
        t->state = t->state == ENDS ? HAS_ENDED : t->done == g->plain->steps ? ENDS : STARTS;
        break;
    default:
        fail_msg("a rank acts in state %d", t->state);
    }
    ps_writer_fini(&w);
}

/* ---- events ---- */

static inline void check_versions(const struct group *g)
{
    uint64_t lowest = UINT64_MAX;

    for (uint32_t r = 0; r < g->n_ranks; r++)
        if (g->trainers[g->ranks[r]].done < lowest)
            lowest = g->trainers[g->ranks[r]].done;
    for (uint32_t s = 0; s < g->n_servers; s++)
        if (lives(g, g->n_ranks + s) && g->decided > 0)
            assert_true(ps_server_version(server_at(g, s)) <= lowest);
}

static inline void deliver(struct group *g, uint32_t from, uint32_t to)
{
    struct mail *m = queue_take(&g->queues[from][to]);
    uint32_t kind;
    struct err err = { 0 };

    memcpy(&kind, (const uint8_t *)m->data + 4, sizeof(kind));
    if (to >= g->n_ranks) {
        struct ps_server *s = server_at(g, to - g->n_ranks);
        uint64_t step = m->data[1];

        g->n_later += kind == PS_PUSH && step == ps_server_version(s) + 2;
        g->n_waits += kind == PS_PULL && step == ps_server_version(s) + 1;
        g->handled = malloc(m->n);
        g->handled_room = m->n;
        assert_non_null(g->handled);
        memcpy(g->handled, m->data, m->n);
        if (ps_server_handle(s, from, g->handled, m->n, &err) < 0) {
            if (!g->servers_may_fail)
                fail_msg("server %u, kind %u from %u: %s", to - g->n_ranks, kind, from, err.text);
            g->failure = err;
        }
        free(g->handled);
        g->handled = NULL;
    } else if (to == g->leader && (kind != PS_ROWS || g->leader_reads) &&
               g->trainers[g->ranks[to]].state != ASKS) {
        queue_add(&g->inbox, m);
        return;
    } else {
        rank_receives(g, to, m);
    }
    free(m);
}

/* One event. Returns false if nothing can happen, or the generation is over. */
static inline bool group_event(struct group *g)
{
    uint32_t n = g->n_ranks + g->n_servers, n_choices = 0, choice;

    g->n_events++;
    kill_due(g);
    if (g->is_broken && g->n_left-- == 0) {
        g->n_left = 0;
        return false;
    }
    for (uint32_t i = 0; i < n * n; i++)
        n_choices += g->queues[i / n][i % n].first != NULL;
    for (uint32_t r = 0; r < g->n_ranks; r++)
        n_choices += can_act(g, r);
    if (n_choices == 0)
        return false;
    choice = (uint32_t)group_draw(g, n_choices);
    for (uint32_t i = 0; i < n * n; i++)
        if (g->queues[i / n][i % n].first != NULL && choice-- == 0) {
            deliver(g, i / n, i % n);
            check_versions(g);
            return true;
        }
    for (uint32_t r = 0; r < g->n_ranks; r++)
        if (can_act(g, r) && choice-- == 0) {
            rank_acts(g, r);
            break;
        }
    check_versions(g);
    return true;
}

static inline int leader_sends(const struct ps_port *p, uint32_t to, const struct iovec *parts,
                               uint32_t n, struct err *err)
{
    struct group *g = p->arg;

    if (g->is_broken && (!lives(g, g->leader) || !lives(g, to)))
        return err_set(err, ERR_PEER, "a task died");
    group_send(g, g->leader, to, parts, n);
    return 0;
}

static inline int leader_receives(const struct ps_port *p, struct comm_message *out,
                                  struct err *err)
{
    struct group *g = p->arg;
    uint32_t kind;

    free(g->read);
    while ((g->read = queue_take(&g->inbox)) == NULL || !lives(g, g->leader)) {
        free(g->read);
        g->read = NULL;
        if (lives(g, g->leader) && group_event(g))
            continue;
        assert_true(g->is_broken); /* else: a deadlock */
        return err_set(err, ERR_PEER, "a task died");
    }
    *out = (struct comm_message){ .from = g->read->from, .bytes = g->read->n,
                                  .data = (const uint8_t *)g->read->data };
    memcpy(&kind, out->data + 4, sizeof(kind));
    g->n_reports += kind == PS_WAIT;
    return 0;
}

static inline struct ps_port leader_port(struct group *g)
{
    return (struct ps_port){ .send = leader_sends, .receive = leader_receives, .arg = g };
}

static void collect(struct group *g)
{
    uint64_t step = g->trainers[g->ranks[g->leader]].done + 1;
    double *expected = &g->plain->squares[step]; /* of every group */
    struct ps_port port = leader_port(g);
    struct ps_votes votes;
    struct err err = { 0 };
    int rc = ps_leader_collect(g->leads, &port, &g->route, step, &votes, &err);

    if (rc < 0) {
        if (rc != ERR_PEER || !g->is_broken)
            fail_msg("%s", err.text);
        return;
    }
    assert_true(votes.is_finite);
    if (*expected == 0)
        *expected = votes.squares;
    assert_memory_equal(expected, &votes.squares, sizeof(*expected));
    g->decided = step;
    g->n_skipped += plain_skips(step);
    for (uint32_t p = 0; p < PS; p++) /* what other servers hold is now out of date */
        memcpy(g->ps[p].may_hold, g->ps[p].owns, sizeof(g->ps[p].owns));
}

/* ---- a generation ---- */

static inline void begin_members(struct group *g)
{
    struct group_member members[TASKS] = { 0 };
    struct group_view view = { .generation = 1, .members = members };
    uint32_t shares[TRAINERS];

    g->n_ranks = g->n_servers = 0;
    for (uint32_t t = 0; t < TRAINERS; t++)
        if (g->trainers[t].lives) {
            members[view.n_members++] = (struct group_member){ .rank = t, .n_devices = 1 };
            g->ranks[g->n_ranks++] = t;
        }
    for (uint32_t p = 0; p < PS; p++) {
        if (!g->ps[p].lives)
            continue;
        members[view.n_members++] =
            (struct group_member){ .rank = TRAINERS + p, .n_servers = threads_of[p] };
        for (uint32_t k = 0; k < threads_of[p]; k++) {
            g->owner[g->n_servers] = p;
            g->thread[g->n_servers++] = k;
        }
    }
    ps_route_make(&view, g->replicas, &g->route);
    assert_int_equal(g->route.n_ranks, g->n_ranks);
    assert_int_equal(g->route.n_servers, g->n_servers);
    g->leader = (uint32_t)group_draw(g, g->n_ranks);
    comm_share(NULL, g->plain->lanes, g->n_ranks, shares);
    for (uint32_t r = 0, lane = 0; r < g->n_ranks; lane += shares[r++]) {
        struct trainer *t = &g->trainers[g->ranks[r]];

        t->first_lane = lane;
        t->n_lanes = shares[r];
        t->state = AT_REST;
        t->n_owed = t->next = 0;
    }
}

static inline void group_begin(struct group *g)
{
    struct table_fill fills[PLAIN_TABLES];
    struct ps_leader_opts o = { .tables = g->plain->tables, .n_tables = g->plain->n_tables,
                                .optimizer = g->plain->type, .hyper = &g->plain->hyper,
                                .average = g->plain->average,
                                .staleness = g->plain->staleness, .check_every = 1,
                                .fills = fills };

    for (uint32_t i = 0; i < g->plain->n_tables; i++)
        fills[i] = plain_fill(&g->plain->tables[i]);
    begin_members(g);
    g->is_broken = g->leader_reads = false;
    g->decided = 0;
    for (uint32_t i = 0; i < g->n_servers; i++)
        assert_int_equal(ps_server_begin(server_at(g, i), g->n_ranks, g->n_servers, g->n_ranks + i,
                                         g->leader, NULL),
                         0);
    assert_int_equal(ps_leader_open(&o, &g->leads, NULL), 0);
}

static inline void group_end(struct group *g)
{
    for (uint32_t i = 0; i < POINTS * POINTS; i++)
        queue_clear(&g->queues[i / POINTS][i % POINTS]);
    queue_clear(&g->inbox);
    free(g->read);
    g->read = NULL;
    for (uint32_t i = 0; i < g->n_servers; i++)
        if (lives(g, g->n_ranks + i))
            ps_server_end(server_at(g, i));
    for (uint32_t t = 0; t < TRAINERS; t++)
        for (uint32_t p = 0; p < POINTS; p++) {
            free(g->trainers[t].asked[p]);
            g->trainers[t].asked[p] = NULL;
        }
    ps_leader_close(g->leads);
    g->leads = NULL;
}

static inline bool any_ps(const struct group *g, uint32_t shard, bool certainly)
{
    for (uint32_t p = 0; p < PS; p++)
        if (g->ps[p].lives && (certainly ? g->ps[p].holds[shard] : g->ps[p].may_hold[shard]))
            return true;
    return false;
}

static inline bool has_rows(const struct group *g, uint32_t shard)
{
    for (uint32_t t = 0; t < g->plain->n_tables; t++)
        if (g->plain->tables[t].rows == 0 ||
            ps_local_rows(g->plain->tables[t].rows, ps_first_shard(t), shard) > 0)
            return true;
    return false;
}

/* Are all shards with rows certainly, or possibly, held? */
static inline bool is_held(const struct group *g, bool certainly)
{
    bool all = true;

    for (uint32_t s = 0; s < PS_SHARDS; s++)
        all = all && (any_ps(g, s, certainly) || !has_rows(g, s));
    return all;
}

/* Asks a server which shards it has. */
static inline void ask_held(struct group *g, uint32_t server, uint64_t set[PS_SET_WORDS])
{
    uint32_t reader = 0;
    struct ps_message m = { .kind = PS_QUERY };
    struct ps_writer w = { 0 };
    struct err err = { 0 };
    struct mail *mail;

    memset(set, 0, PS_SET_WORDS * sizeof(*set));
    while (reader < g->n_ranks && !lives(g, reader))
        reader++;
    if (reader == g->n_ranks) /* no answer arrives */
        return;
    ps_write_begin(&w, &m, 0);
    if (ps_server_handle(server_at(g, server), reader, w.data, w.n, &err) < 0)
        fail_msg("server %u: %s", server, err.text);
    ps_writer_fini(&w);
    mail = queue_take(&g->queues[g->n_ranks + server][reader]);
    assert_non_null(mail);
    read_message(g, mail, NULL, &m);
    assert_int_equal(m.kind, PS_HELD);
    memcpy(set, m.shards, PS_SET_WORDS * sizeof(*set));
    free(mail);
}

static inline bool has_held(const struct group *g, const uint64_t *has, uint32_t table,
                            uint64_t row, uint32_t server)
{
    uint32_t shard = plain_shard(&g->plain->tables[table], row);

    return has_holder(g, shard, server) && ps_set_has(has, shard);
}

/* Reads all rows of all parts from every holder that has all rows of a shard, and compares them. */
static inline void check_holders(struct group *g)
{
    static struct ps_section sections[PS_TABLES_MAX];
    uint64_t step = g->trainers[g->ranks[0]].done;
    uint32_t reader = (g->leader + 1) % g->n_ranks;

    for (uint32_t i = 0; i < g->n_servers * g->plain->n_tables * plain_all_parts(g->plain); i++) {
        uint32_t server = i % g->n_servers, table = i / g->n_servers % g->plain->n_tables;
        uint32_t part = i / g->n_servers / g->plain->n_tables, width = plain_tables[table].width;
        struct ps_message m = { .kind = PS_PULL, .step = step };
        struct ps_writer w = { 0 };
        struct err err = { 0 };
        struct mail *mail;
        uint64_t n = 0, k = 0, has[PS_SET_WORDS];

        ask_held(g, server, has);
        ps_write_begin(&w, &m, 1);
        for (uint64_t row = 0; row < plain_rows(&g->plain->tables[table]); row++)
            if (has_held(g, has, table, row, server)) {
                *(uint64_t *)ps_write_room(&w, sizeof(uint64_t)) =
                    plain_number(&g->plain->tables[table], row);
                n++;
            }
        ps_write_section(&w, 0, table, part, n);
        if (ps_server_handle(server_at(g, server), reader, w.data, w.n, &err) < 0)
            fail_msg("server %u: %s", server, err.text);
        ps_writer_fini(&w);
        mail = queue_take(&g->queues[g->n_ranks + server][reader]);
        assert_non_null(mail);
        read_message(g, mail, sections, &m);
        assert_int_equal(sections[0].n, n);
        for (uint64_t row = 0; row < plain_rows(&g->plain->tables[table]); row++)
            if (has_held(g, has, table, row, server))
                check_bits(sections[0].values + k++ * width,
                           plain_row(g->plain, step, part, table, row), width, "a holder has", step,
                           table, row);
        free(mail);
    }
}

/* Each holder has its shards, and no others (after a step). */
static inline void check_shards(struct group *g)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < g->n_servers; i++) {
        struct ps_server_stats stats;

        ps_server_stats(server_at(g, i), &stats);
        n += stats.n_shards;
    }
    assert_int_equal(n, PS_SHARDS * g->route.n_holders);
}

/* Notes after a settlement which servers have the valid rows of a shard. */
static inline void note_holders(struct group *g)
{
    for (uint32_t p = 0; p < PS; p++) {
        memset(g->ps[p].owns, 0, sizeof(g->ps[p].owns));
        memset(g->ps[p].holds, 0, sizeof(g->ps[p].holds));
    }
    for (uint32_t i = 0; i < g->n_servers; i++) {
        struct ps_task *p = &g->ps[g->owner[i]];
        uint64_t has[PS_SET_WORDS];

        if (!p->lives)
            continue;
        ask_held(g, i, has);
        for (uint32_t shard = 0; shard < PS_SHARDS; shard++) {
            if (!has_holder(g, shard, i))
                continue;
            p->owns[shard] = p->may_hold[shard] = true;
            p->holds[shard] = ps_set_has(has, shard);
        }
    }
}

/* All trainers hold the newest step of one of them. Returns what ps_leader_settle() returned. `from`:
 * a checkpoint of that step was read. */
static inline int group_settle(struct group *g, bool from)
{
    uint64_t step = g->trainers[g->ranks[0]].done;
    struct optim_hyper hyper = plain_hyper(g->plain, step);
    struct plain_source source = { g->plain, step, 0 };
    struct ps_settlement s = { .step = step,
                               .hyper = step > 0 && !plain_skips(step) ? &hyper : NULL,
                               .source = from ? plain_read : NULL, .arg = &source,
                               .on_progress = plain_progress,
                               .is_initial = step == 0 };
    struct ps_port port = leader_port(g);
    struct ps_settled settled = { 0 };
    struct optim_hyper unknown = { .step = 1, .learning_rate = 7 }; /* a checkpoint does not contain it */
    bool certainly = is_held(g, true), possibly = is_held(g, false);
    uint32_t n_reports = g->n_reports;
    struct err err = { 0 };
    int rc;

    if (from && s.hyper != NULL)
        s.hyper = &unknown;
    rc = ps_leader_settle(g->leads, &port, &g->route, &s, &settled, &err);

    if (rc < 0 && rc != ERR_REFUSED && !(rc == ERR_PEER && g->is_broken))
        fail_msg("settlement after step %u: %s", (unsigned)step, err.text);
    if (rc == ERR_REFUSED && !g->is_broken) {
        assert_false(from || certainly);
        g->n_refused++;
    }
    for (uint32_t shard = 0; rc != ERR_REFUSED && shard < PS_SHARDS; shard++)
        for (uint32_t h = 0; h < g->route.n_holders; h++)
            g->ps[g->owner[ps_route_holders(&g->route, shard)[h]]].may_hold[shard] = true;
    if (rc < 0)
        return rc;
    assert_true(from || possibly);
    assert_true(from || settled.n_filled == 0);
    assert_int_equal(source.n_progress, settled.n_filled + g->n_reports - n_reports);
    g->n_copied += settled.n_copied;
    g->n_followed += settled.n_followed;
    g->n_committed += settled.n_committed;
    note_holders(g);
    if (!g->is_broken)
        check_holders(g);
    return 0;
}

/* Trains until the end of the job, or a death. */
static inline void group_train(struct group *g)
{
    bool ended = true;

    for (uint32_t r = 0; r < g->n_ranks; r++)
        g->trainers[g->ranks[r]].state =
            g->trainers[g->ranks[r]].done == g->plain->steps ? ENDS : STARTS;
    while (group_event(g))
        continue;
    if (g->is_broken)
        return;
    for (uint32_t r = 0; r < g->n_ranks; r++)
        ended = ended && g->trainers[g->ranks[r]].state == HAS_ENDED;
    assert_true(ended);
    for (uint32_t i = 0; i < g->n_servers; i++)
        assert_int_equal(ps_server_ended(server_at(g, i)), PS_COMPLETE);
    check_holders(g);
    if (g->decided > 0)
        check_shards(g);
}

/* The leader reads whole tables at the end of a generation. */
static inline void check_whole(struct group *g)
{
    struct ps_port port = leader_port(g);
    uint64_t step = g->trainers[g->ranks[0]].done;

    g->leader_reads = true;
    for (uint32_t i = 0; !g->is_broken && i < g->plain->n_tables * plain_all_parts(g->plain); i++) {
        uint32_t n_parts = plain_all_parts(g->plain);
        uint32_t table = i / n_parts, part = i % n_parts;
        uint32_t width = g->plain->tables[table].width;
        float *got = malloc(plain_rows(&g->plain->tables[table]) * width * sizeof(*got));
        uint64_t *numbers = malloc(plain_rows(&g->plain->tables[table]) * sizeof(*numbers));
        struct err err = { 0 };
        int rc;

        assert_true(got != NULL && numbers != NULL);
        for (uint64_t row = 0; row < plain_rows(&g->plain->tables[table]); row++)
            numbers[row] = plain_number(&g->plain->tables[table], row);
        rc = ps_leader_read(g->leads, &port, &g->route, step, table, part,
                            g->plain->tables[table].rows == 0 ? numbers : NULL, 0,
                            plain_rows(&g->plain->tables[table]), got, &err);
        if (rc < 0 && !g->is_broken)
            fail_msg("%s", err.text);
        for (uint64_t row = 0; rc == 0 && row < plain_rows(&g->plain->tables[table]); row++)
            check_bits(got + row * width, plain_row(g->plain, step, part, table, row), width,
                       "the leader reads", step, table, row);
        free(got);
        free(numbers);
    }
    g->leader_reads = false;
}

static inline uint64_t newest(const struct group *g)
{
    uint64_t step = 0;

    for (uint32_t t = 0; t < TRAINERS; t++)
        if (g->trainers[t].lives && g->trainers[t].done > step)
            step = g->trainers[t].done;
    return step;
}

static inline void hold_step(struct group *g, uint64_t step)
{
    for (uint32_t t = 0; t < TRAINERS; t++)
        g->trainers[t].done = step;
}

/* One generation. Returns true if the job is complete. */
static inline bool group_generation(struct group *g, uint64_t checkpoint, bool *from)
{
    uint64_t step = *from ? checkpoint : newest(g);
    int rc;

    hold_step(g, step);
    group_begin(g);
    rc = group_settle(g, *from || step == 0);
    if (rc == 0)
        group_train(g);
    *from = rc == ERR_REFUSED;
    if (rc == 0 && !g->is_broken)
        check_whole(g);
    group_end(g);
    return rc == 0 && !g->is_broken;
}

static inline void group_close(struct group *g)
{
    for (uint32_t t = 0; t < TASKS; t++)
        group_kill(g, t);
}

#endif
