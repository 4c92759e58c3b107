#include "preflight/judge_priv.h"

#include "base/err.h"

int judge(const struct preflight_table *t, struct preflight_findings *out, struct err *err)
{
    struct judged j = { .t = t };

    judge_pairs(&j);
    judge_tasks(&j);
    if (j.failed) {
        VEC_FINI(j.found);
        return err_set(err, ERR_NOMEM, "out of memory");
    }
    *out = (struct preflight_findings){ j.found.at, (uint32_t)j.found.n };
    return 0;
}
