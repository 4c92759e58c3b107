/* classes_cuda.cu - see loss_cuda.cuh. */
#include "op/loss/loss_cuda.cuh"

int loss_cuda_plan(struct op_plan *p, const struct loss_classes *s, size_t acc_bytes,
                   struct err *err)
{
    const struct reduce_axis last[2] = { { loss_rows(s), false, 1 }, { s->classes, true, 0 } };
    const struct reduce_axis between[3] = { { s->n, false, s->positions }, { s->classes, true, 0 },
                                            { s->positions, false, 1 } };
    struct loss_state *state = (struct loss_state *)calloc(1, sizeof(*state));
    size_t bytes = s->classes * sizeof(float), splits;
    int rc = 0;

    if (state == NULL)
        return err_set(err, ERR_NOMEM, "%s '%s': out of memory", p->def->name, p->node);
    reduce_walk_make(&state->rows, s->is_last ? last : between, s->is_last ? 2 : 3,
                     16 / tensor_dtype_bytes(p->in[0]->dtype));
    if (s->weights != NULL && bytes > 0)
        rc = cuda_upload(&state->class_weights, s->weights, bytes, err);
    if (rc < 0) {
        loss_cuda_free(state);
        return rc;
    }
    splits = loss_round(reduce_scratch(&state->rows, acc_bytes));
    p->scratch_bytes = loss_fold_scratch(loss_rows(s));
    p->scratch_bytes = loss_round(loss_rows(s) * sizeof(loss_pair)) +
                       (splits > p->scratch_bytes ? splits : p->scratch_bytes);
    p->state = state;
    return 0;
}

void loss_cuda_free(void *state)
{
    struct loss_state *s = (struct loss_state *)state;

    if (s != NULL)
        cuda_free(s->class_weights);
    free(s);
}
