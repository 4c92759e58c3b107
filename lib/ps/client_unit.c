/* client_unit.c - the units of a rank in an asynchronous phase; see client.h. */
#include <string.h>

#include "base/err.h"
#include "ps/client_priv.h"

enum { SEQUENCER }; /* the first server */

int ps_client_limit(struct ps_client *c, uint64_t step, struct err *err)
{
    const struct ps_message m = { .kind = PS_LIMIT, .step = step, .flag = step == 0 };

    ps_write_begin(&c->peers[SEQUENCER].out, &m, 0);
    return client_send_to(c, SEQUENCER, err);
}

static int read_go(struct ps_client *c, const struct ps_message *m, uint64_t step,
                   struct ps_next *out, struct err *err)
{
    *out = (struct ps_next){ .what = PS_NEXT_UNIT,
                             .unit = { step, m->number, m->n_lanes },
                             .version = m->first,
                             .n_facts = m->n_facts };
    if (m->step != step || m->flag > PS_GO_STOP || (m->flag == PS_GO_UNIT) != (m->n_lanes > 0))
        return err_set(err, ERR_PEER, "server 0: GO is not the answer to NEXT");
    if (m->flag != PS_GO_UNIT)
        out->what = m->flag == PS_GO_STOP ? PS_NEXT_STOP : PS_NEXT_NONE;
    memcpy(out->facts, m->facts, m->n_facts * sizeof(*m->facts));
    c->version = m->first;
    return 0;
}

int ps_client_next(struct ps_client *c, uint64_t step, uint32_t first, uint32_t n, uint64_t after,
                   struct ps_next *out, struct err *err)
{
    struct ps_message m = {
        .kind = PS_NEXT, .step = step, .number = first, .flag = n, .first = after
    };
    struct client_peer *p = &c->peers[SEQUENCER];
    uint32_t from;
    int rc;

    ps_write_begin(&p->out, &m, 0);
    p->owes = true;
    rc = client_send_to(c, SEQUENCER, err);
    if (rc == 0)
        rc = client_receive(c, PS_GO, &from, &m, err);
    if (rc == 0)
        rc = read_go(c, &m, step, out, err);
    if (rc < 0 || out->what != PS_NEXT_UNIT)
        return rc;
    return out->unit.first >= first && out->unit.n <= n &&
                   out->unit.first - first <= n - out->unit.n
               ? 0
               : err_set(err, ERR_PEER, "server 0: GO names lanes of another rank");
}

void ps_client_begin_unit(struct ps_client *c, uint64_t step)
{
    ps_client_begin(c, 0);
    c->unit_step = step;
}

int ps_client_order(struct ps_client *c, uint64_t *version, struct err *err)
{
    struct ps_message m;
    uint32_t from;
    int rc;

    c->peers[SEQUENCER].owes = true;
    rc = client_receive(c, PS_TICKET, &from, &m, err);
    if (rc < 0)
        return rc;
    *version = m.step;
    m = (struct ps_message){ .kind = PS_ORDER, .step = *version };
    return client_send_to_all(c, &m, err);
}

int ps_client_commit_unit(struct ps_client *c, uint64_t version, const struct optim_hyper *hyper,
                          const struct ps_unit_facts *facts, struct err *err)
{
    struct ps_message m = { .kind = PS_COMMIT,
                            .step = version,
                            .flag = PS_COMMIT_UNIT | (hyper == NULL ? PS_COMMIT_SKIP : 0u),
                            .clip = (float)facts->norm };

    memcpy(&m.first, &facts->loss, sizeof(facts->loss));
    if (hyper != NULL)
        m.hyper = *hyper;
    c->version = version;
    return client_send_to_all(c, &m, err);
}
