/* server_sum.c - the pending gradient of a server: the sum of the pushes, and the vote on it; see server.h. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"
#include "ps/server_priv.h"

/* Reads the messages again, which are valid, and lists their sections by table, then by rank. */
static int list_parts(struct ps_server *s, uint32_t first, uint32_t end, uint32_t *n_parts,
                      float *clip, struct err *err)
{
    size_t n = 0, all = 0;

    for (uint32_t r = first; r < end; r++) {
        int rc = ps_message_read(s->ranks[r].push.data, s->ranks[r].push.n, s->widths, s->n_tables,
                                 s->push_sections + (size_t)r * PS_TABLES_MAX, &s->pushes[r], err);

        if (rc < 0)
            return rc;
        all += s->pushes[r].n_sections;
    }
    if (all > s->room_parts) {
        struct ps_part *grown = realloc(s->parts, all * sizeof(*grown));

        if (grown == NULL)
            return server_no_memory(err);
        s->parts = grown;
        s->room_parts = all;
    }
    *clip = s->pushes[first].clip;
    for (uint32_t t = 0; t < s->n_tables; t++)
        for (uint32_t r = first; r < end; r++) {
            struct ps_message *p = &s->pushes[r];
            struct ps_section *x = p->sections;

            if (p->n_sections == 0 || x->table != t)
                continue;
            s->parts[n++] = (struct ps_part){ .rank = r,
                                              .first_leaf = p->number,
                                              .n_leaves = (uint32_t)p->first,
                                              .table = t,
                                              .n = x->n,
                                              .rows = x->rows,
                                              .values = x->values };
            p->sections++; /* sections ascend by table */
            p->n_sections--;
        }
    if (n != all)
        return err_set(err, ERR_PEER, "PUSH: the sections are not in the order of the tables");
    *n_parts = (uint32_t)n;
    return 0;
}

static int vote(struct ps_server *s, uint32_t to, struct err *err)
{
    struct ps_message m = { .kind = PS_VOTE, .step = s->version + 1 };
    void *at;

    ps_store_verdict(s->store, s->verdict);
    m.flag = s->verdict->is_finite ? PS_VOTE_FINITE : 0;
    if (s->opts.wants_save != NULL && s->opts.wants_save(s->opts.arg))
        m.flag |= PS_VOTE_SAVE;
    ps_write_begin(&s->out, &m, 0);
    at = ps_write_room(&s->out, sizeof(s->verdict->checksums));
    if (at != NULL)
        memcpy(at, s->verdict->checksums, sizeof(s->verdict->checksums));
    at = ps_write_room(&s->out, sizeof(s->verdict->squares));
    if (at != NULL)
        memcpy(at, s->verdict->squares, sizeof(s->verdict->squares));
    at = ps_write_room(&s->out, sizeof(s->states));
    if (at != NULL)
        memcpy(at, s->states, sizeof(s->states));
    return server_send(s, to, err);
}

/* The ranks push only to the holders of a shard, so other copies would miss the gradient. The
 * settlement has ended: no copy is requested any more. */
static void drop_moved(struct ps_server *s)
{
    for (uint32_t i = 0; i < PS_SHARDS; i++)
        if (!ps_set_has(s->own, i))
            ps_store_drop_shard(s->store, i);
}

/* Computes the checksums of the shards that holders compare in this step, before it changes a row. Every holder has the
 * same version then. Units of asynchronous phases are not compared: their order differs between servers. */
static void sum_states(struct ps_server *s)
{
    uint32_t first = s->has_unit ? PS_SHARDS : ps_checked_shard(s->version + 1, s->check_every);

    memset(s->states, 0, sizeof(s->states));
    for (uint32_t i = 0; first < PS_SHARDS && i < PS_CHECK_SHARDS; i++)
        if (ps_set_has(s->own, first + i) && server_has_shard(s, first + i))
            s->states[i] = 1 + (uint64_t)ps_store_checksum(s->store, first + i);
}

int server_sum(struct ps_server *s, uint32_t first, uint32_t n_ranks, uint32_t voter,
               struct err *err)
{
    uint32_t n = 0;
    float clip = 0;
    int rc = list_parts(s, first, first + n_ranks, &n, &clip, err);

    drop_moved(s);
    sum_states(s);
    if (rc == 0)
        rc = ps_store_reduce(s->store, s->parts, n, err);
    if (rc < 0)
        return rc;
    s->pending_history = s->generation;
    s->pending_step = s->has_unit ? s->ranks[first].unit.step : s->units.complete + 1;
    for (uint32_t i = 0; i < n; i++)
        s->rows_updated += s->parts[i].n;
    if (clip > 0)
        ps_store_clip(s->store, clip);
    rc = fault_error("ps.vote", err);
    return rc < 0 ? rc : vote(s, voter, err);
}
