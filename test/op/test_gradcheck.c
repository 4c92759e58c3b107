/* Tests of the harness: a correct op passes, and each kind of fault is detected. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "harness/gradcheck.h"

/* y = x^2 (output 0), z = 3 x (output 1).   dx = 2 x dy + 3 dz. */
static enum fault {
    NO_FAULT,
    WRONG_GRADIENT,
    ONE_WRONG_ELEMENT,
    IGNORES_SECOND_OUTPUT,
    OVERWRITES_INSTEAD_OF_ADDING,
    ADDS_INSTEAD_OF_OVERWRITING,
    LEAVES_AN_OUTPUT_ELEMENT,
    LEAVES_A_GRADIENT_ELEMENT,
    WRITES_BEHIND_THE_OUTPUT,
    WRITES_BEHIND_SAVE,
    WRITES_BEFORE_SCRATCH,
    READS_SCRATCH_UNWRITTEN,
    READS_WHAT_IT_DID_NOT_LIST,
    MODIFIES_ITS_INPUT,
    MODIFIES_DOUT,
    CANNOT_WORK_IN_PLACE,
    DEPENDS_ON_THE_LAYOUT,
    FAULTS,
} fault;

static int square_infer(struct op_infer *f, struct err *err)
{
    (void)err;
    f->out[0].dtype = f->out[1].dtype = TENSOR_F32;
    f->out[0].shape = f->out[1].shape = f->in[0]->shape;
    return 0;
}

static int square_plan(struct op_plan *p, struct err *err)
{
    (void)err;
    p->save_bytes = tensor_bytes(p->in[0]);
    p->scratch_bytes = 12;
    return 0;
}

static int square_fwd(const struct op_call *c, struct err *err)
{
    size_t n = (size_t)tensor_elements(c->in[0]), first = fault == LEAVES_AN_OUTPUT_ELEMENT, i;
    float *x = c->in[0]->data, *y = c->out[0]->data, *z = c->out[1]->data, *save = c->save;
    char *scratch = c->scratch;
    float x0 = x[0];

    (void)err;
    memcpy(save, x, n * sizeof(float));
    for (i = first; i < n; i++) {
        y[i] = save[i] * save[i];
        z[i] = 3 * save[i];
        if (fault == CANNOT_WORK_IN_PLACE && x[0] != x0) /* overwritten by y[0] */
            y[i] = 0;
        if (fault == DEPENDS_ON_THE_LAYOUT)
            y[i] += (float)i;
        if (fault == READS_SCRATCH_UNWRITTEN)
            y[i] += (float)(scratch[i % 12] & 1);
    }
    if (fault == WRITES_BEHIND_THE_OUTPUT)
        y[n] = 0;
    if (fault == WRITES_BEHIND_SAVE)
        save[n] = 0;
    if (fault == WRITES_BEFORE_SCRATCH)
        scratch[-1] = 0;
    if (fault == MODIFIES_ITS_INPUT)
        x[n - 1] = 0;
    return 0;
}

static int square_bwd(const struct op_call *c, struct err *err)
{
    size_t n = (size_t)tensor_elements(c->din[0]), i;
    const float *x = fault == READS_WHAT_IT_DID_NOT_LIST ? c->in[0]->data : c->save;
    const float *dz = fault == IGNORES_SECOND_OUTPUT ? NULL : c->dout[1]->data;
    float *dy = c->dout[0]->data, *dx = c->din[0]->data;
    bool add = (c->din_add & OP_IN(0)) != 0;

    (void)err;
    if (fault == OVERWRITES_INSTEAD_OF_ADDING)
        add = false;
    if (fault == ADDS_INSTEAD_OF_OVERWRITING)
        add = true;
    for (i = fault == LEAVES_A_GRADIENT_ELEMENT; i < n; i++) {
        float g = 2 * x[i] * dy[i] + (dz != NULL ? 3 * dz[i] : 0);

        if (fault == WRONG_GRADIENT || (fault == ONE_WRONG_ELEMENT && i == n / 2))
            g *= 1.02f;
        dx[i] = add ? dx[i] + g : g;
    }
    if (fault == MODIFIES_DOUT)
        dy[0] = 0;
    return 0;
}

static const struct op_def square = {
    .name = "Square",
    .since = 1,
    .n_in = { 1, 1 },
    .n_out = { 2, 2 },
    .infer = square_infer,
    .diff = OP_IN(0),
    .in_place = true,
    .layout = OP_LAYOUT_ANY,
    .cpu = { square_plan, square_fwd, square_bwd, NULL },
};

static void check_square(void **state)
{
    const struct gradcheck_case gc = { .def = &square, .opset = 13, .n_in = 1, .n_out = 2,
                                       .in = { { .shape = GRADCHECK_SHAPE(2, 3, 4),
                                                 .lo = 0.5, .hi = 1.5 } } };

    (void)state;
    gradcheck_run(&gc);
}

/* Runs the check in a child process with its output suppressed. */
static bool passes(enum fault f)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(check_square) };
    int status = 0, null;
    pid_t child;

    fflush(NULL);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        fault = f;
        null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        _exit(cmocka_run_group_tests(tests, NULL, NULL) == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status) == 0;
}

static void correct_op_passes(void **state)
{
    (void)state;
    assert_true(passes(NO_FAULT));
}

static void each_injected_fault_is_detected(void **state)
{
    uint32_t f;

    (void)state;
    for (f = NO_FAULT + 1; f < FAULTS; f++)
        if (passes(f))
            fail_msg("fault %u was not caught", f);
}

static void rejected_case_returns_error_and_empty_result(void **state)
{
    struct gradcheck_case gc = { .op = "Add", .opset = 13, .n_in = 2,
                                 .in = { { .shape = GRADCHECK_SHAPE(2) },
                                         { .shape = GRADCHECK_SHAPE(3) } } };
    struct gradcheck_result r;
    struct err err = { 0 };
    size_t i;

    (void)state;
    assert_int_equal(gradcheck_forward(&gc, &r, &err), ERR_INPUT);
    assert_int_equal(err.code, ERR_INPUT);
    for (i = 0; i < GRADCHECK_MAX; i++)
        assert_true(r.in[i].data == NULL && r.out[i].data == NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(correct_op_passes),
        cmocka_unit_test(each_injected_fault_is_detected),
        cmocka_unit_test(rejected_case_returns_error_and_empty_result),
    };

    return cmocka_run_group_tests_name("op/gradcheck", tests, NULL, NULL);
}
