/* mlp_cpu.c - Mlp by its parts: fusing the library's products with our function would gain nothing
 * on a CPU. */
#include <stdlib.h>

#include "base/err.h"
#include "op/gemm/mlp.h"
#include "op/op_priv.h"

extern const struct op_def op_product, op_gelu, op_relu;

void mlp_cpu_free(void *state)
{
    if (state != NULL)
        mlp_fini(state);
    free(state);
}

int mlp_cpu_plan(struct op_plan *p, struct err *err)
{
    const struct mlp_param *m = p->param;
    struct mlp *s = calloc(1, sizeof(*s));
    int rc;

    if (s == NULL)
        return err_set(err, ERR_NOMEM, "Mlp '%s': out of memory", p->node);
    rc = mlp_init(s, p, &op_product.cpu, m->is_relu ? &op_relu.cpu : &op_gelu.cpu, 0, err);
    if (rc < 0) {
        mlp_cpu_free(s);
        return rc;
    }
    p->state = s;
    return 0;
}

int mlp_cpu_fwd(const struct op_call *c, struct err *err)
{
    int rc = mlp_up(c->state, c, err);

    return rc == 0 ? mlp_down(c->state, c, err) : rc;
}

int mlp_cpu_bwd(const struct op_call *c, struct err *err)
{
    int rc;

    if (c->dout[0] == NULL) {
        op_bwd_zero(c);
        return 0;
    }
    rc = mlp_down_bwd(c->state, c, mlp_wants_hidden(c), err);
    return rc == 0 && mlp_wants_hidden(c) ? mlp_up_bwd(c->state, c, err) : rc;
}
