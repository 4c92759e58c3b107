#include "daemon/inspect_attention.h"

#include <stdio.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "graph/graph.h"

int inspect_attention_copy(struct inspect_attention *a, const struct plan *p, struct arena *mem,
                           struct err *err)
{
    uint32_t n, i;
    const struct plan_attention *from = plan_attentions(p, &n);
    struct plan_attention *to = arena_array(mem, n, sizeof(*to));

    if (to == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (i = 0; i < n; i++) {
        to[i] = from[i];
        to[i].node = arena_strdup(mem, from[i].node);
        to[i].why = arena_strdup(mem, from[i].why);
        if (to[i].node == NULL || to[i].why == NULL)
            return err_set(err, ERR_NOMEM, "out of memory");
    }
    *a = (struct inspect_attention){ to, n };
    return 0;
}

void inspect_attention_print(const struct inspect_attention *a)
{
    for (uint32_t i = 0; i < a->n; i++)
        printf("%-11s%-40s %s%s\n", i == 0 ? "attention" : "", a->at[i].node,
               a->at[i].is_fused ? "fused" : "not fused: ", a->at[i].why);
}

void inspect_attention_json(const struct inspect_attention *a, struct buf *out)
{
    buf_str(out, ",\n  \"attention\": [");
    for (uint32_t i = 0; i < a->n; i++) {
        buf_str(out, i > 0 ? ",\n    {\"node\": " : "\n    {\"node\": ");
        buf_json(out, a->at[i].node);
        buf_printf(out, ", \"fused\": %s", a->at[i].is_fused ? "true" : "false");
        if (!a->at[i].is_fused) {
            buf_str(out, ", \"reason\": ");
            buf_json(out, a->at[i].why);
        }
        buf_str(out, "}");
    }
    buf_str(out, "]");
}
