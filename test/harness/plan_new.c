/* plan_new.c - every plan that a test program makes is verified.
 *
 * The Makefile links test programs with --wrap=plan_new, so that calls from tests and from the
 * library (lib/engine) arrive here. */
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "graph/graph.h"

int __real_plan_new(const struct graph *g, const struct plan_opts *opts, struct plan **out,
                    struct err *err);
int __wrap_plan_new(const struct graph *g, const struct plan_opts *opts, struct plan **out,
                    struct err *err);

int __wrap_plan_new(const struct graph *g, const struct plan_opts *opts, struct plan **out,
                    struct err *err)
{
    struct err wrong = { 0 };
    struct plan *p = NULL;
    int rc = __real_plan_new(g, opts, &p, err);

    if (rc < 0)
        return rc;
    rc = plan_verify(p, &wrong);
    if (rc == ERR_NOMEM) { /* a test injects it */
        plan_free(p);
        return err_set(err, rc, "%s", wrong.text);
    }
    if (rc < 0) {
        fprintf(stderr, "plan_new() made an invalid plan: %s\n", wrong.text);
        abort();
    }
    *out = p;
    return 0;
}
