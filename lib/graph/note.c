/* note.c - notes of the import for the user, which graph_notes() returns. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "graph/graph_priv.h"

int graph_note(struct graph *g, struct err *err, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (g->report.n_notes == g->report.cap_notes) {
        uint32_t cap = g->report.cap_notes > 0 ? 2 * g->report.cap_notes : 8;
        const char **more = arena_array(&g->mem, cap, sizeof(*more));

        if (more == NULL)
            return err_set(err, ERR_NOMEM, "out of memory");
        if (g->report.n_notes > 0)
            memcpy(more, g->report.notes, g->report.n_notes * sizeof(*more));
        g->report.notes = more;
        g->report.cap_notes = cap;
    }
    g->report.notes[g->report.n_notes] = arena_strdup(&g->mem, text);
    if (g->report.notes[g->report.n_notes] == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    g->report.n_notes++;
    return 0;
}
