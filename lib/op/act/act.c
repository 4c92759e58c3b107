#include "op/act/act.h"

int act_infer(struct op_infer *f, const float *defaults, struct err *err)
{
    const char *const *name = f->def->attrs;
    float *p = f->param;
    int rc = infer_same_shape(f, err);

    for (; rc == 0 && *name != NULL; name++, defaults++, p++)
        rc = op_attr_f(f, *name, *defaults, p, err);
    return rc;
}
