/* cluster_print.c - prints a cluster: the canonical form that tasks compare, and the JSON of
 * --check.
 *
 * The canonical form is {"chief":{"0":"a:1"},"worker":{"0":"b:1"}}: jobs sorted by name, indices by
 * number, addresses as written but without the trailing dot of a host. It contains what must be
 * equal on all members, so it omits evaluators, which need not be listed, and jobs without
 * tasks. */
#include "conf/cluster_print.h"

#include <inttypes.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/digest.h"
#include "conf/cluster_draft.h"

/* Appends an address without the trailing dot of its host: "host.:1" becomes "host:1". */
static void print_plain_address(struct cluster *c, const char *address, struct buf *out)
{
    const char *colon = strrchr(address, ':');
    bool has_dot = colon > address + 1 && colon[-1] == '.';
    char *plain = arena_printf(&c->mem, "%.*s%s", (int)(colon - address - has_dot), address, colon);

    if (plain == NULL)
        out->failed = true;
    else
        buf_json(out, plain);
}

int cluster_make_canonical(struct cluster *c, struct err *err)
{
    uint8_t digest[DIGEST_BYTES];
    struct buf out = { 0 };
    const struct cluster_task *previous = NULL;

    buf_str(&out, "{");
    for (uint32_t i = 0; i < c->n_tasks; i++) {
        const struct cluster_task *t = &c->tasks[i];

        if (t->type == CLUSTER_EVALUATOR || t->address == NULL)
            continue;
        if (previous == NULL || previous->type != t->type)
            buf_printf(&out, "%s\"%s\":{", previous == NULL ? "" : "},",
                       cluster_type_name(t->type));
        else
            buf_str(&out, ",");
        buf_printf(&out, "\"%" PRIu32 "\":", t->index);
        print_plain_address(c, t->address, &out);
        previous = t;
    }
    buf_str(&out, previous == NULL ? "}" : "}}");
    if (!out.failed)
        c->canonical = arena_strdup(&c->mem, out.data);
    buf_fini(&out);
    if (c->canonical == NULL)
        return cluster_nomem(err);
    digest_sha256(c->canonical, strlen(c->canonical), digest);
    digest_hex(digest, c->hash);
    return 0;
}

static void print_task(const struct cluster_task *t, struct buf *out)
{
    buf_printf(out, "{\"type\":\"%s\",\"index\":%" PRIu32 ",\"rank\":", cluster_type_name(t->type),
               t->index);
    if (t->rank == CLUSTER_NO_RANK)
        buf_str(out, "null");
    else
        buf_printf(out, "%" PRIu32, t->rank);
    buf_str(out, ",\"address\":");
    if (t->address == NULL)
        buf_str(out, "null");
    else
        buf_json(out, t->address);
    buf_str(out, "}");
}

static const char *bool_text(bool b)
{
    return b ? "true" : "false";
}

void cluster_print(const struct cluster *c, struct buf *out)
{
    buf_str(out, "{\"source\":");
    buf_json(out, c->source);
    buf_printf(out, ",\"local\":%s,\"dynamic\":%s,\"world\":%" PRIu32 ",\"chief\":%s,\"task\":",
               bool_text(c->is_local), bool_text(c->is_dynamic), c->world, bool_text(c->is_chief));
    print_task(c->self, out);
    buf_str(out, ",\"index_source\":");
    buf_json(out, c->index_source);
    buf_str(out, ",\"tasks\":[");
    for (uint32_t i = 0; i < c->n_tasks; i++) {
        buf_str(out, i > 0 ? "," : "");
        print_task(&c->tasks[i], out);
    }
    buf_printf(out, "],\"canonical\":%s,\"hash\":\"%s\",\"notes\":[", c->canonical, c->hash);
    for (uint32_t i = 0; i < c->n_notes; i++) {
        buf_str(out, i > 0 ? "," : "");
        buf_json(out, c->notes[i]);
    }
    buf_str(out, "]}");
}
