/* plan_verify_memory.c - the contents of memory, and the reads and writes of one call. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "graph/plan_verify.h"

enum { ALIGNMENT = 64 };

static const char *const base_names[] = { [PLAN_WORK] = "work memory",
                                          [PLAN_ARENA] = "parameters",
                                          [PLAN_DELAYED] = "delayed parameters",
                                          [PLAN_GRADS] = "gradients",
                                          [PLAN_CONSTANTS] = "constants",
                                          [PLAN_REMOTE] = "remote tables",
                                          [PLAN_REMOTE_GRADS] = "gradients of remote tables",
                                          [PLAN_BASES] = "memory that is not bound" };

struct verify_address {
    const void *at;
    uint32_t base;
    size_t offset;
};

static int by_field(const void *pa, const void *pb)
{
    const struct verify_address *a = pa, *b = pb;

    return a->at < b->at ? -1 : a->at > b->at;
}

int verify_no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "memory plan: out of memory");
}

int verify_memory_open(struct verify_memory *m, const struct plan *p, struct err *err)
{
    size_t n = 0, i;
    uint32_t base;

    m->p = p;
    for (base = 0; base < PLAN_BASES; base++)
        n += p->memory.binds[base].n;
    m->addresses = calloc(n + 1, sizeof(*m->addresses));
    if (m->addresses == NULL)
        return verify_no_memory(err);
    for (base = 0; base < PLAN_BASES; base++)
        for (i = 0; i < p->memory.binds[base].n; i++)
            m->addresses[m->n_addresses++] =
                (struct verify_address){ p->memory.binds[base].at[i].at, base,
                                         p->memory.binds[base].at[i].offset };
    qsort(m->addresses, n, sizeof(*m->addresses), by_field);
    for (i = 1; i < n; i++)
        if (m->addresses[i].at == m->addresses[i - 1].at)
            return err_set(err, ERR_CORRUPT,
                           "memory plan: an address is bound twice; expected one place, found %s "
                           "at %zu and %s at %zu",
                           base_names[m->addresses[i - 1].base], m->addresses[i - 1].offset,
                           base_names[m->addresses[i].base], m->addresses[i].offset);
    return 0;
}

void verify_memory_close(struct verify_memory *m)
{
    free(m->addresses);
    VEC_FINI(m->contents);
    VEC_FINI(m->intact);
}

uint32_t verify_add(struct verify_memory *m, const char *kind, const char *name)
{
    struct verify_content c = {
        .kind = kind, .name = name, .target = GRAPH_NONE, .written_by = GRAPH_NONE
    };

    return VEC_PUSH(m->contents, c) ? (uint32_t)m->contents.n - 1 : GRAPH_NONE;
}

bool verify_find(const struct verify_memory *m, const void *at, uint32_t *base, size_t *offset)
{
    const struct verify_address key = { .at = at }, *found;

    found = bsearch(&key, m->addresses, m->n_addresses, sizeof(key), by_field);
    if (found == NULL)
        return false;
    *base = found->base;
    *offset = found->offset;
    return true;
}

/* ---- messages ---- */

static const char *name_of(const struct verify_memory *m, uint32_t content, const char **kind)
{
    *kind = content != GRAPH_NONE ? m->contents.at[content].kind : "scratch memory";
    return content != GRAPH_NONE ? m->contents.at[content].name : "";
}

/* "forward of Relu 'r': input 0, value 'x' at [0, 64) of the work memory" */
static int refuse(const struct verify_memory *m, const struct verify_operand *o, struct err *err,
                  const char *expected, const char *found)
{
    const char *kind, *name = name_of(m, o->content, &kind);

    return err_set(err, ERR_CORRUPT,
                   "memory plan: %s: %s %" PRIu32 ", %s '%s' at [%zu, %zu) of the %s; expected %s, "
                   "found %s",
                   m->place, o->role, o->i, kind, name, o->offset, o->offset + o->bytes,
                   base_names[o->base], expected, found);
}

static int refuse_read(const struct verify_memory *m, const struct verify_operand *o,
                       struct err *err)
{
    const struct verify_content *c = &m->contents.at[o->content];
    const char *kind, *name;
    char found[512];

    if (c->state == VERIFY_DESTROYED) {
        struct plan_call_info call = { "", "", false };

        if (c->destroyed_by != GRAPH_NONE)
            call = plan_call_info(m->p, c->destroyed_by);
        name = name_of(m, c->destroyer, &kind);
        snprintf(found, sizeof(found), "%s '%s', which %s of %s '%s' wrote there", kind, name,
                 call.backward ? "backward" : "forward", call.op, call.node);
        return refuse(m, o, err, "its numbers", found);
    }
    if (c->state == VERIFY_UNWRITTEN)
        return refuse(m, o, err, "its numbers", "memory that no earlier call has written");
    snprintf(found, sizeof(found), "another place: [%zu, %zu) of the %s", c->offset,
             c->offset + c->bytes, base_names[c->base]);
    return refuse(m, o, err, "the place where its numbers were written", found);
}

/* ---- places ---- */

static size_t base_bytes(const struct plan *p, uint32_t base)
{
    return base == PLAN_WORK        ? p->memory.work_bytes
           : base == PLAN_CONSTANTS ? p->device.constants_bytes
           : base == PLAN_REMOTE || base == PLAN_REMOTE_GRADS
               ? p->g->arena.remote_floats * sizeof(float)
               : p->g->arena.floats * sizeof(float);
}

/* Sets base and offset of an operand, and checks alignment and bounds. */
static int place(const struct verify_memory *m, struct verify_operand *o, struct err *err)
{
    if (!verify_find(m, o->at, &o->base, &o->offset)) {
        o->base = PLAN_BASES;
        o->offset = (size_t)(uintptr_t)o->data;
        if (o->writes)
            return refuse(m, o, err, "memory of the plan", "an address that no binding sets");
        if (o->data == NULL || o->data == PLAN_POISON_ADDRESS)
            return refuse(m, o, err, "an address", "none");
        return 0;
    }
    if (o->writes && o->base != PLAN_WORK && o->base != PLAN_GRADS && o->base != PLAN_REMOTE_GRADS)
        return refuse(m, o, err, "memory that calls may write", "memory that calls only read");
    if (o->offset % ALIGNMENT != 0)
        return refuse(m, o, err, "an offset that is a multiple of 64", "another offset");
    if (o->offset > base_bytes(m->p, o->base) || o->bytes > base_bytes(m->p, o->base) - o->offset) {
        char found[64];

        snprintf(found, sizeof(found), "only %zu bytes", base_bytes(m->p, o->base));
        return refuse(m, o, err, "a range inside this memory", found);
    }
    return 0;
}

static bool overlap(uint32_t base_a, size_t a, size_t n_a, uint32_t base_b, size_t b, size_t n_b)
{
    return base_a == base_b && a < b + n_b && b < a + n_a;
}

int verify_read(struct verify_memory *m, struct verify_operand *o, struct err *err)
{
    const struct verify_content *c = &m->contents.at[o->content];
    int rc;

    if (o->bytes == 0)
        return 0;
    rc = place(m, o, err);
    if (rc < 0)
        return rc;
    if (c->state != VERIFY_INTACT || c->base != o->base || c->offset != o->offset)
        return refuse_read(m, o, err);
    if (c->bytes != o->bytes)
        return refuse(m, o, err, "the size that was written", "another size");
    return 0;
}

/* ---- a call ---- */

/* Two operands of one call overlap only if one overwrites the other in place. */
static int check_pair(const struct verify_memory *m, const struct verify_operand *operands,
                      uint32_t i, uint32_t k, struct err *err)
{
    const struct verify_operand *a = &operands[i], *b = &operands[k];
    char found[256];

    if (!overlap(a->base, a->offset, a->bytes, b->base, b->offset, b->bytes))
        return 0;
    if ((a->in_place == k || b->in_place == i) && a->offset == b->offset && a->bytes == b->bytes)
        return 0;
    snprintf(found, sizeof(found), "the memory of %s %" PRIu32, b->role, b->i);
    return refuse(m, a, err, "memory of its own", found);
}

/* Records a write: destroys the contents that it overlaps. */
static int write_operand(struct verify_memory *m, const struct verify_operand *o, struct err *err)
{
    struct verify_content *c;
    size_t kept = 0, i;

    for (i = 0; i < m->intact.n; i++) {
        struct verify_content *other = &m->contents.at[m->intact.at[i]];

        if (m->intact.at[i] == o->content)
            continue;
        if (overlap(other->base, other->offset, other->bytes, o->base, o->offset, o->bytes)) {
            other->state = VERIFY_DESTROYED;
            other->destroyer = o->content;
            other->destroyed_by = m->call;
            continue;
        }
        m->intact.at[kept++] = m->intact.at[i];
    }
    m->intact.n = kept;
    if (o->content == GRAPH_NONE)
        return 0;
    c = &m->contents.at[o->content];
    c->state = VERIFY_INTACT;
    c->base = o->base;
    c->offset = o->offset;
    c->bytes = o->bytes;
    c->written_by = m->call;
    return VEC_PUSH(m->intact, o->content) ? 0 : verify_no_memory(err);
}

int verify_access(struct verify_memory *m, struct verify_operand *operands, uint32_t n,
                  struct err *err)
{
    uint32_t i, k;
    int rc = 0;

    for (i = 0; i < n && rc == 0; i++) {
        if (operands[i].reads)
            rc = verify_read(m, &operands[i], err);
        else if (operands[i].bytes > 0)
            rc = place(m, &operands[i], err);
    }
    for (i = 0; i < n && rc == 0; i++) {
        if (!operands[i].writes || operands[i].bytes == 0)
            continue;
        for (k = 0; k < n && rc == 0; k++)
            if (k != i && operands[k].bytes > 0)
                rc = check_pair(m, operands, i, k, err);
    }
    for (i = 0; i < n && rc == 0; i++)
        if (operands[i].writes && operands[i].bytes > 0)
            rc = write_operand(m, &operands[i], err);
    return rc;
}
